/** The few drawings the page needs, in one stroke style. */
import type { ReactNode } from "react";

function Icon({ children, filled = false }: { children: ReactNode; filled?: boolean }) {
  return (
    <svg
      className="icon"
      viewBox="0 0 20 20"
      width="1em"
      height="1em"
      aria-hidden="true"
      fill={filled ? "currentColor" : "none"}
      stroke={filled ? "none" : "currentColor"}
      strokeWidth="1.6"
      strokeLinecap="round"
      strokeLinejoin="round"
    >
      {children}
    </svg>
  );
}

export const Arrow = () => (
  <Icon>
    <path d="M10 16V4M5 9l5-5 5 5" />
  </Icon>
);
export const Down = () => (
  <Icon>
    <path d="M10 4v12M5 11l5 5 5-5" />
  </Icon>
);
export const Square = () => (
  <Icon filled>
    <rect x="5" y="5" width="10" height="10" rx="2" />
  </Icon>
);
export const Plus = () => (
  <Icon>
    <path d="M10 4.5v11M4.5 10h11" />
  </Icon>
);
export const Menu = () => (
  <Icon>
    <path d="M3.5 6h13M3.5 10h13M3.5 14h9" />
  </Icon>
);
export const Bin = () => (
  <Icon>
    <path d="M4 6h12M8 6V4h4v2m-6.5 0 .6 9.2a1 1 0 0 0 1 .8h5.8a1 1 0 0 0 1-.8L14.500 6" />
  </Icon>
);
export const Copy = () => (
  <Icon>
    <rect x="7" y="7" width="9" height="9" rx="2" />
    <path d="M13 7V5.500A1.500 1.500 0 0 0 11.500 4h-6A1.500 1.500 0 0 0 4 5.500v6A1.500 1.500 0 0 0 5.500 13H7" />
  </Icon>
);
export const Check = () => (
  <Icon>
    <path d="m4.500 10.500 3.500 3.500 7.500-8" />
  </Icon>
);
export const Cross = () => (
  <Icon>
    <path d="m5.500 5.500 9 9m0-9-9 9" />
  </Icon>
);
export const Play = () => (
  <Icon filled>
    <path d="M6.500 4.800v10.400a.6.6 0 0 0 .9.500l8.500-5.200a.6.6 0 0 0 0-1L7.400 4.300a.6.6 0 0 0-.9.500Z" />
  </Icon>
);
export const Chevron = () => (
  <Icon>
    <path d="m8 5 5 5-5 5" />
  </Icon>
);
export const Question = () => (
  <Icon>
    <path d="M7.500 7.500a2.500 2.500 0 1 1 3.400 2.300c-.6.300-.9.700-.9 1.400v.300M10 14.500h.01" />
  </Icon>
);

export const Pencil = () => (
  <Icon>
    <path d="m4 16 .8-3.400 8-8a1.600 1.600 0 0 1 2.300 0l.3.300a1.600 1.600 0 0 1 0 2.300l-8 8L4 16Z" />
  </Icon>
);
export const Again = () => (
  <Icon>
    <path d="M15.500 10a5.500 5.500 0 1 1-1.700-4M15.500 3.500V7H12" />
  </Icon>
);
export const Steer = () => (
  <Icon>
    <path d="M5 4v4a3 3 0 0 0 3 3h7M11.500 7.500 15 11l-3.500 3.500" />
  </Icon>
);
export const Pulse = () => (
  <Icon>
    <path d="M3 10h3l2.500-5.500 3.500 11L14.500 10H17" />
  </Icon>
);

/** The mark of the product: a gate with somebody in it. */
export const Mark = () => (
  <svg className="mark" viewBox="0 0 32 32" width="1em" height="1em" aria-hidden="true">
    <rect width="32" height="32" rx="9" fill="var(--accent)" />
    <path d="M8 22V15a8 8 0 0 1 16 0v7" fill="none" stroke="var(--on-accent)" strokeWidth="3" strokeLinecap="round" />
    <circle cx="16" cy="20" r="2.600" fill="var(--on-accent)" />
  </svg>
);
