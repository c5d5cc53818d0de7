import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./App.js";
import { openGateway } from "./token.js";
import "./styles.css";

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <App gateway={openGateway()} />
  </StrictMode>,
);
