"""A gateway inside a FastAPI application: `uvicorn gateway.examples.fastapi_app:app`, then http://127.0.0.1:8000/agent/."""

import os

from fastapi import FastAPI

from gateway import Agent, Gateway, ScriptedModel

gateway = Gateway(Agent(ScriptedModel()), store=os.environ.get("GATEWAY_STORE", "sqlite:///gateway.db"))
app = FastAPI(lifespan=gateway.lifespan)
app.mount("/agent", gateway.asgi)


@app.get("/")
async def home() -> dict[str, str]:
    """Say where the agent is: everything else here is the application's own."""
    return {"agent": "/agent/"}
