"""HTTP: the front end and its roads. In reading order:

answers     Answer: status, headers, body; every refusal as JSON
door        Door: one model's infer request, step by step, for every road
front       Front: the doors of one front end, metadata and readiness
bodies      how much of all bodies is held while they arrive
upload      Upload: a body as it comes in over ASGI
infer       the ASGI road through a Door
app         the Starlette application: routes, sending
connection  uvicorn's protocol with an end to every wait
server      uvicorn on an inherited socket, with a stop that keeps its time
frontend    the process
"""
