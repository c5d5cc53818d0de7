/** Keep the newest line in view, unless the person has scrolled up to read. */
import { type RefObject, useCallback, useEffect, useLayoutEffect, useRef, useState } from "react";

const NEAR = 64;

export interface Stick {
  scroller: RefObject<HTMLDivElement | null>;
  content: RefObject<HTMLDivElement | null>;
  stuck: boolean;
  toBottom: () => void;
  /** Call before content is put in front: what is being read stays where it is. */
  hold: () => void;
}

export function useStickToBottom(key: unknown): Stick {
  const scroller = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const wanted = useRef(true);
  const lastTop = useRef(0);
  const held = useRef<{ element: Element; top: number } | null>(null);
  const [stuck, setStuck] = useState(true);

  const settle = useCallback(() => {
    const element = scroller.current;
    if (!element) return;
    if (held.current !== null) {
      const { element: read, top } = held.current;
      const moved = read.getBoundingClientRect().top - top;
      if (moved !== 0) element.scrollTop += moved;
      held.current = null;
    } else if (wanted.current) element.scrollTop = element.scrollHeight;
    lastTop.current = element.scrollTop;
  }, []);

  const toBottom = useCallback(() => {
    wanted.current = true;
    setStuck(true);
    settle();
  }, [settle]);

  const hold = useCallback(() => {
    const edge = scroller.current?.getBoundingClientRect().top ?? 0;
    const shown = [...(content.current?.querySelectorAll("[data-message-id]") ?? [])];
    const element = shown.find((one) => one.getBoundingClientRect().bottom > edge);
    if (element) held.current = { element, top: element.getBoundingClientRect().top };
  }, []);

  useLayoutEffect(() => {
    held.current = null;
    toBottom();
  }, [key, toBottom]);

  useEffect(() => {
    const element = scroller.current;
    if (!element) return undefined;
    const onScroll = () => {
      const { scrollTop, scrollHeight, clientHeight } = element;
      // Only a movement up is a wish: the content growing under us moves nothing.
      if (scrollHeight - scrollTop - clientHeight < NEAR) wanted.current = true;
      else if (scrollTop < lastTop.current) wanted.current = false;
      lastTop.current = scrollTop;
      setStuck(wanted.current);
    };
    element.addEventListener("scroll", onScroll, { passive: true });
    const observer = typeof ResizeObserver === "function" ? new ResizeObserver(settle) : null;
    if (content.current) observer?.observe(content.current);
    observer?.observe(element);
    return () => {
      element.removeEventListener("scroll", onScroll);
      observer?.disconnect();
    };
  }, [settle]);

  return { scroller, content, stuck, toBottom, hold };
}
