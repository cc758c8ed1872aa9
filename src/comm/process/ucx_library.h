// UCX, loaded when a world first has several hosts: else its handlers of signals and its memory would be in
// every process.
#pragma once

#include <ucp/api/ucp.h>

namespace tessera::comm {

// clang-format off
#define TESSERA_FOR_EACH_UCX(function) \
  function(ucp_get_version) function(ucp_config_read) function(ucp_config_modify) function(ucp_config_release) \
  function(ucp_init_version) function(ucp_cleanup) function(ucp_worker_create) function(ucp_worker_destroy) \
  function(ucp_worker_progress) function(ucp_listener_create) function(ucp_listener_query) \
  function(ucp_listener_destroy) function(ucp_conn_request_query) function(ucp_ep_create) \
  function(ucp_ep_close_nbx) function(ucp_ep_flush_nbx) function(ucp_tag_send_nbx) function(ucp_tag_send_sync_nbx) \
  function(ucp_tag_recv_nbx) function(ucp_request_check_status) function(ucp_request_cancel) function(ucp_request_free)
// clang-format on

struct UcxLibrary {
#define TESSERA_UCX_MEMBER(function) decltype(&::function) function;
  TESSERA_FOR_EACH_UCX(TESSERA_UCX_MEMBER)
#undef TESSERA_UCX_MEMBER
  decltype(&::ucs_status_string) ucs_status_string;
};

// The library's functions; it stays loaded. The process's handlers of signals are as before. EnvironmentError
// naming the file if it cannot be loaded.
const UcxLibrary& ucx();

// EnvironmentError naming `call` unless it succeeded.
void check_ucx(ucs_status_t status, const char* call);

}  // namespace tessera::comm
