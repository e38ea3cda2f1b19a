"""uvicorn's HTTP protocol with what uvicorn lacks: limits, cheap refusals, answers that arrive.

- **Timeouts** (`connection`). uvicorn has none for a request's head, the rest of a body whose
  answer is sent, and clients that do not read their answers or read them slowly; here the
  connection is closed. The body of a request in progress has its own timeout in `requests/body.py`.
- **Limits** on the number of connections (`open_connections`), and on the number of headers, the
  bytes of a head, trailer or chunk extension, and the pipelined requests (`connection`). Trailers
  are dropped: uvicorn adds them to the headers (RFC 9110, 6.5.1).
- **Disconnects.** uvicorn notifies the last request only, even if an earlier one is in progress.
- **Whole answers** (`transport`). A proxy passes a head on at once: if the process is killed before
  it writes the body, no other replica can answer. Here one write has both.
- **Load shedding.** `refuse` answers before the app does: 0.06 ms of processor time, not 0.26.
- **Lingering close** (`transport`). A connection that is closed with bytes unread is reset, and the
  client loses the answer (RFC 9112, 9.6).
- **Upgrades** (`parser`). A server may treat `Upgrade` like any other header (RFC 9110, 7.8).

uvicorn documents none of the names that `connection` uses, and a minor version may change them. So
`pyproject.toml` limits the version, and `test_connection.py` lists each name and checks it:

- the callbacks of connection and parser, to add the limits: `connection_made`, `data_received`,
  `on_message_begin`, `on_header`, `on_headers_complete`, `on_body`, `on_message_complete`,
  `connection_lost`, `shutdown`, `pause_writing`, `resume_writing`;
- `_start_asgi_task`, to refuse a request instead, with `STATUS_LINE`, `server_state` and
  `on_response_complete` for the answer;
- `_unset_keepalive_if_required`, `timeout_keep_alive`, `timeout_keep_alive_handler` and
  `timeout_keep_alive_task`, to start the timer again after an early answer;
- the state of the connection (`cycle`, `flow`, `headers`, `parser`, `pipeline`, `scope`,
  `transport`) and of a request's cycle (`disconnected`, `keep_alive`, `message_event`,
  `on_response`, `response_complete`, `response_started`).
"""
