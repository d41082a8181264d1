"""Starts `deepinfer serve` for a test and speaks HTTP to it with the standard library alone."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BINARY = os.environ.get('DEEPINFER_BINARY', os.path.join(ROOT, 'build/cpu/deepinfer'))
MODEL = os.path.join(ROOT, 'tests/golden/data/llama')
TEMPLATE = os.path.join(ROOT, 'tests/e2e/chat.jinja')


class Server:
    """One process; `with Server(...) as server`. Flags are given as on the command line."""

    def __init__(self, *flags, model=MODEL, template=TEMPLATE, wait=True):
        own = ['--chat-template', template] if template else []
        command = [BINARY, 'serve', model, '--port', '0', '--served-model-name', 'tiny', *own,
                   *flags]
        self.started_s = time.monotonic()
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=clean_env())
        self.log = []
        self.port = self._read_port()
        # Somebody has to read the pipe, or the server would block on a full one.
        self.reader = threading.Thread(target=self._drain_log, daemon=True)
        self.reader.start()
        if wait:
            self.wait_ready()

    def _read_port(self):
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(r'listening on http://.*:(\d+),', line)
            if found:
                return int(found.group(1))
        raise RuntimeError('the server did not start:\n' + ''.join(self.log))

    def _drain_log(self):
        for line in self.process.stderr:
            self.log.append(line)

    def wait_ready(self, timeout_s=60):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError('the server ended:\n' + ''.join(self.log))
            status, _, _ = self.request('GET', '/health')
            if status == 200:
                return
            time.sleep(0.002)
        raise RuntimeError('the server is not ready:\n' + ''.join(self.log))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stderr.close()

    def connect(self, timeout_s=60):
        return http.client.HTTPConnection('127.0.0.1', self.port, timeout=timeout_s)

    def request(self, method, path, body=None, headers=None):
        """(status, headers in lower case, text)"""
        connection = self.connect()
        fields = dict(headers or {})
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
            fields.setdefault('Content-Type', 'application/json')
        connection.request(method, path, body=body, headers=fields)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, text

    def post(self, path, body, headers=None):
        status, _, text = self.request('POST', path, body, headers)
        return status, json.loads(text)

    def stream(self, path, body):
        """Opens a stream: (connection, response)."""
        connection = self.connect()
        connection.request('POST', path, body=json.dumps({**body, 'stream': True}),
                           headers={'Content-Type': 'application/json'})
        return connection, connection.getresponse()

    def events(self, path, body):
        """All data payloads of a stream, [DONE] as the string it is."""
        connection, response = self.stream(path, body)
        text = response.read().decode()
        connection.close()
        assert response.status == 200, text
        events = []
        for block in text.split('\n\n'):
            for line in block.split('\n'):
                if line.startswith('data: '):
                    payload = line[len('data: '):]
                    events.append(payload if payload == '[DONE]' else json.loads(payload))
        return events

    def health(self):
        return json.loads(self.request('GET', '/health')[2])

    def metrics(self):
        """{sample name with its labels but without model_name and engine: value}"""
        out = {}
        for line in self.request('GET', '/metrics')[2].splitlines():
            if line.startswith('#'):
                continue
            name, value = line.rsplit(' ', 1)
            name = re.sub(r'model_name="[^"]*",engine="0",?', '', name)
            out[name.replace('{}', '')] = float(value)
        return out

    def wait_idle(self, timeout_s=60):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            health = self.health()
            if health['running'] == 0 and health['waiting'] == 0:
                return True
            time.sleep(0.002)
        return False

    def wait_log(self, text, timeout_s=60):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if any(text in line for line in list(self.log)):
                return True
            time.sleep(0.002)
        return False

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait_exit(self, timeout_s=60):
        return self.process.wait(timeout=timeout_s)

    def raw(self, data, timeout_s=60):
        """Sends bytes and an end, returns everything until the server closes."""
        with socket.create_connection(('127.0.0.1', self.port), timeout=timeout_s) as client:
            try:
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
            except OSError:  # the server has seen enough
                pass
            out = b''
            while True:
                try:
                    piece = client.recv(65536)
                except (ConnectionResetError, socket.timeout):
                    break
                if not piece:
                    break
                out += piece
            return out


def clean_env():
    return {k: v for k, v in os.environ.items() if not k.startswith('DEEPINFER_')}
