// What /v1/files and /v1/batches answer. Any thread; touches the disk.
#pragma once

#include <memory>

#include "deepinfer/server_config.h"
#include "net/http_types.h"
#include "server/batch_service.h"

namespace deepinfer {

Result<std::unique_ptr<BatchService>> OpenBatches(const ServerConfig& config);

HttpResponse AnswerBatches(const HttpRequest& request, BatchService* batches);

}  // namespace deepinfer
