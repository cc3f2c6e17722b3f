"""A webhook of this machine alone: prints the first lines of each alarm that reaches it.  python webhook.py 8098"""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Webhook(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        posted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        print(posted["title"], "·", posted["message"].partition("\n")[0], flush=True)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...  # that is all we want to see


with HTTPServer(("127.0.0.1", int(sys.argv[1])), Webhook) as server:
    print(f"listening on json://127.0.0.1:{server.server_port}/", flush=True)
    server.serve_forever()
