// Configuration of `deepinfer serve` beyond the engine: fields carry the names of vLLM's flags.
// A plain value, parsed once in apps/ and handed to Server.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deepinfer/config.h"

namespace deepinfer {

struct ServerConfig {
  std::string model;  // a model directory or file
  EngineConfig engine;

  std::string host = "127.0.0.1";
  int port = 8000;
  // Any of these opens every route; empty: no key is asked for. Without a key only /health,
  // /ping and /metrics answer when keys are set.
  std::vector<std::string> api_keys;
  // Names that requests may give as `model`; the first is reported. Empty: the file
  // or directory name of the model, whose whole path is accepted as well.
  std::vector<std::string> served_model_names;
  // Jinja file that replaces the checkpoint's chat template; empty: keep it.
  std::string chat_template_file;
  // Special tokens spelt out in a user's text count as such, as in Hugging Face. Otherwise only
  // those that the chat template writes do, so that nobody can forge a turn.
  bool trust_user_special_tokens = false;
  // Refuses request fields that no dialect knows, instead of a warning in the answer.
  bool strict_api = false;

  // Responses of /v1/responses that can be read, continued and cancelled; the oldest go first.
  int64_t max_stored_responses = 4'096;  // 0: none are kept
  int64_t max_stored_response_bytes = 256 << 20;
  int64_t stored_response_ttl_s = 86'400;

  // Where /v1/files and /v1/batches keep what they are given; empty: there are no such routes.
  std::string batch_dir;
  int64_t max_batches = 100;                         // kept; the oldest that are over make room
  int64_t max_batch_lines = 50'000;                  // of one batch
  int batch_window = 0;                              // lines in flight; 0: half of max_num_seqs
  int64_t max_stored_files = 1'000;                  // more are refused with 429
  int64_t max_stored_file_bytes = int64_t{4} << 30;  // all files together
  int64_t stored_file_ttl_s = 30 * 86'400;

  // Where streams of chats say what was used: openai (a chunk of its own, when asked for) or
  // deepseek (on the last chunk of the answer, always).
  std::string usage_style = "openai";

  // Tokens that a stream gathers before it sends a chunk; the first and the last come at once.
  int stream_interval = 1;

  // HTTP limits.
  int http_threads = 1;                        // event-driven I/O threads
  int max_connections = 10'000;                // more are refused with 503
  int max_concurrent_requests = 4'096;         // more are refused with 503
  int64_t max_header_bytes = 64 << 10;         // 431
  int64_t max_body_bytes = 64 << 20;           // 413
  int64_t max_body_bytes_in_flight = 1 << 30;  // all requests together, 503
  int64_t header_timeout_ms = 15'000;          // 408
  int64_t body_timeout_ms = 120'000;           // 408
  int64_t idle_timeout_ms = 75'000;            // between requests of a connection
  int64_t write_timeout_ms = 60'000;           // a client that reads nothing for so long is cut
  int64_t sse_ping_interval_ms = 15'000;       // silence before a keep-alive comment
  int64_t max_stream_buffer_bytes = 4 << 20;   // unread bytes of one answer before it is cut
  std::vector<std::string> allowed_origins;    // CORS; empty: none

  // Threads that parse, render and tokenise requests; 0: by the number of cores.
  int prep_threads = 0;
  // Requests that may wait for such a thread; more are refused with 503.
  int64_t max_num_queued_preps = 4'096;
  // Longest time a request may take from its arrival to its end; 0: no limit. 504 or a cut stream.
  int64_t request_timeout_ms = 0;
  // Work that waits so long without a finished step makes /health answer 503.
  int64_t watchdog_timeout_ms = 60'000;
  // After SIGTERM, how long running requests may go on before they are cancelled.
  int64_t shutdown_timeout_ms = 30'000;
};

}  // namespace deepinfer
