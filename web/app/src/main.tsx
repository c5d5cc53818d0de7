import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./App.js";
import { Tap } from "./tap.js";
import { openGateway } from "./token.js";
import "./styles.css";

const tap = new Tap();

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <App gateway={openGateway(tap)} tap={tap} />
  </StrictMode>,
);
