/**
 * Text from a model, made safe: no raw HTML, no script addresses, nothing loaded from elsewhere.
 *
 * While it streams, only its last block is parsed again at each paint; the blocks before it stand.
 */
import { memo, type ComponentProps, type ReactNode } from "react";
import ReactMarkdown, { type Components } from "react-markdown";
import remarkGfm from "remark-gfm";
import { Check, Copy } from "./icons.js";
import { useWords } from "./language.js";
import { useCopy } from "./useCopy.js";

const plugins = [remarkGfm];

/** Text to the letter. Blank lines are as high as the space between paragraphs, and none are shown at the ends. */
export function Plain({ text }: { text: string }) {
  const [, before = "", inner = "", after = ""] = /^(\s*)([^]*?)(\s*)$/.exec(text) ?? [];
  return (
    <div className="plain">
      {before && <span className="end">{before}</span>}
      {inner.split(/(\n[^\S\n]*\n\s*)/).map((piece, at) =>
        at % 2 === 0 ? (
          piece
        ) : (
          <span key={at} className="gap">
            {piece}
          </span>
        ),
      )}
      {after && <span className="end">{after}</span>}
    </div>
  );
}

/** Anything that could be markup; text without it is shown exactly as it is. */
const MARKUP = /[\\`*_[\]<>#|~&]|^\s*(?:[-+]|\d{1,9}[.)])\s|:\/\/|www\.|@|^(?: {4}|\t)|^\s*[=-]{2,}\s*$/m;

export function isPlain(text: string): boolean {
  return !MARKUP.test(text);
}

/** Split where a new block surely begins: after a blank line, outside a fence, at a line that is not indented or listed. */
export function blocksOf(text: string): string[] {
  const blocks: string[] = [];
  let block: string[] = [];
  let fence = "";
  let blank = false;
  let listed = false;
  for (const line of text.split("\n")) {
    const mark = /^ {0,3}(`{3,}|~{3,})/.exec(line)?.[1] ?? "";
    const item = /^\s*(?:[-+*]|\d{1,9}[.)])\s/.test(line);
    const indented = /^\s/.test(line);
    if (blank && !fence && line.trim() !== "" && !indented && !(item && listed)) {
      blocks.push(block.join("\n"));
      block = [];
      listed = false;
    }
    if (!fence && mark) fence = mark;
    else if (fence && mark.startsWith(fence) && line.trim() === mark) fence = "";
    listed ||= item && !fence;
    blank = line.trim() === "";
    block.push(line);
  }
  blocks.push(block.join("\n"));
  return blocks;
}

/**
 * A link that leads somewhere, or just its words: an address that is not safe has been emptied by then, and one within
 * the text (`#part`, a footnote) would lead to another conversation, for that is what this page's own addresses name.
 */
function Link({ href, className, children }: { href?: string | undefined; className?: string; children: ReactNode }) {
  if (!href || href.startsWith("#")) return <span className={className}>{children}</span>;
  return (
    <a href={href} className={className} rel="noopener noreferrer" target="_blank">
      {children}
    </a>
  );
}

const components: Components = {
  a: ({ href, children }) => <Link href={href}>{children}</Link>,
  // A picture's address can carry what was said to somebody else's server: offered, never fetched.
  img: ({ alt, src }) => (
    <Link href={typeof src === "string" ? src : undefined} className="picture">
      {alt || "Image"}
    </Link>
  ),
  table: ({ node: _, ...props }) => (
    <div className="table" role="region" aria-label="Table" tabIndex={0}>
      <table {...props} />
    </div>
  ),
  pre: ({ node: _, ...props }) => <CodeBlock {...props} />,
};

const Block = memo(function Block({ text }: { text: string }) {
  return (
    <ReactMarkdown remarkPlugins={plugins} components={components}>
      {text}
    </ReactMarkdown>
  );
});

export const Markdown = memo(function Markdown({ text, streaming }: { text: string; streaming: boolean }) {
  if (isPlain(text)) return <Plain text={text} />;
  if (!streaming) return <Block text={text} />;
  return blocksOf(text).map((block, at) => <Block key={at} text={block} />);
});

function textIn(node: ReactNode): string {
  if (typeof node === "string") return node;
  if (Array.isArray(node)) return node.map(textIn).join("");
  if (node && typeof node === "object" && "props" in node) return textIn((node.props as { children?: ReactNode }).children);
  return "";
}

function CodeBlock({ children, ...props }: ComponentProps<"pre">) {
  const [copied, copy] = useCopy();
  const words = useWords();
  return (
    <div className="code">
      <pre {...props} tabIndex={0}>
        {children}
      </pre>
      <button type="button" className="quiet copy" onClick={() => copy(textIn(children))} aria-label={copied ? words.copied : words.copyCode}>
        {copied ? <Check /> : <Copy />}
      </button>
    </div>
  );
}
