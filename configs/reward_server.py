#!/usr/bin/env python3
"""A reward of your own: `reward` scores one sample, the rest speaks OpenRLHF's protocol. Usage: reward_server.py [PORT]"""
import http.server, json, re, sys
END = r"(<[|｜][^<>\s]+[|｜]>|</s>|<eos>)\s*$"  # must match your model's end token, and no tag that it writes
def reward(prompt, response, label):  # a number; higher is better
    return 1.0 if label is not None and response.strip() == str(label) else 0.0
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        ask = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        cut = lambda query, prompt: re.sub(END, "", query.removeprefix(prompt))  # query is prompt, response and end token
        texts = zip(ask["prompts"], map(cut, ask["query"], ask["prompts"]), ask["labels"])
        body = json.dumps({"rewards": [reward(*text) for text in texts]}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1]) if len(sys.argv) > 1 else 5000), Handler).serve_forever()
