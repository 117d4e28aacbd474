"""INDEX → ANSWERS OVER HTTP: the service and its web page (extra `serve`)."""
