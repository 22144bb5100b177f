#!/usr/bin/env python3
"""A reward of your own: `reward` scores one sample, the rest speaks OpenRLHF's protocol. Usage: reward_server.py [PORT]"""
import http.server, json, re, sys
def reward(prompt, response, label):  # a number; higher is better
    return 1.0 if label is not None and response.strip() == label else 0.0
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        ask = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        texts = zip(ask["query"], ask["prompts"], ask["labels"])  # query is prompt and response, with the end token
        cut = lambda query, prompt: re.sub(r"(<[^<>\s]+>\s*)+$", "", query.removeprefix(prompt))
        rewards = [reward(prompt, cut(query, prompt), label) for query, prompt, label in texts]
        body = json.dumps({"rewards": rewards}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1]) if len(sys.argv) > 1 else 5000), Handler).serve_forever()
