"""Deployment on real machines: the methods of a simulation over nodes that keep their data.

Messages travel over Flower. On the server, `server_app` runs the rounds with the engine of `engine`, which talks to the
nodes through `exchange`, `roster` and `flower_transport`. On a node, `client_app` passes messages to `worker`, whose
`node_service` answers them. With secure aggregation the server's engine is that of `secure_engine`, and a node's part
is in `secure_service`. `machines`, `proxy`, `submission` and `loopback` start and watch the processes, with the
commands in `programs`.
"""
