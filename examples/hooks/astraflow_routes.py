from astraflow_core import hookimpl


@hookimpl
def astraflow_routes(service):
    from fastapi import APIRouter

    router = APIRouter()

    @router.get("/v1/team")
    async def team():
        return {"team": "maths", "service": service}

    return [router]
