#include "src/comm/process/ucx_context.h"

#include <fmt/format.h>

#include <cstdlib>

#include "src/comm/process/ucx_library.h"

namespace tessera::comm {
namespace {

class Configuration {
 public:
  Configuration() { check_ucx(ucx().ucp_config_read(nullptr, nullptr, &config_), "ucp_config_read"); }
  ~Configuration() { ucx().ucp_config_release(config_); }
  Configuration(const Configuration&) = delete;
  Configuration& operator=(const Configuration&) = delete;

  // What the user has set in the environment (UCX_TLS, ...) stays.
  void set(const std::string& key, const std::string& value) {
    if (std::getenv(("UCX_" + key).c_str()) != nullptr) return;
    check_ucx(ucx().ucp_config_modify(config_, key.c_str(), value.c_str()),
              fmt::format("the option {}={} of UCX", key, value).c_str());
  }
  // Keys of TCP were named without it before UCX 1.17 where they are set by a program.
  void set_of_tcp(const std::string& key, const std::string& value) {
    if (std::getenv(("UCX_TCP_" + key).c_str()) != nullptr) return;
    unsigned major = 0, minor = 0, release = 0;
    ucx().ucp_get_version(&major, &minor, &release);
    set(major > 1 || minor >= 17 ? "TCP_" + key : key, value);
  }
  const ucp_config_t* get() const { return config_; }

 private:
  ucp_config_t* config_ = nullptr;
};

}  // namespace

ucp_context_h make_context(const std::string& device, int peers) {
  Configuration config;
  config.set("TLS", "tcp");
  config.set("NET_DEVICES", device);
  config.set("SOCKADDR_TLS_PRIORITY", "tcp");
  // A message of up to one segment goes at once. A longer one is asked for by its receiver: where UCX would
  // send it in several segments, a receive whose sender dies in the middle never ends.
  config.set_of_tcp("RX_SEG_SIZE", "512k");
  config.set_of_tcp("TX_SEG_SIZE", "512k");
  config.set("RNDV_THRESH", "256k");
  config.set_of_tcp("CONN_NB", "y");
  config.set_of_tcp("KEEPIDLE", "2s");
  config.set_of_tcp("KEEPINTVL", "1s");
  config.set_of_tcp("KEEPCNT", "3");
  config.set("KEEPALIVE_INTERVAL", "2s");
  config.set("WARN_UNUSED_ENV_VARS", "n");
  config.set("LOG_LEVEL", "error");  // it warns of what is left when a world that failed ends
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
  params.features = UCP_FEATURE_TAG;
  params.estimated_num_eps = static_cast<std::size_t>(peers);
  ucp_context_h context = nullptr;
  check_ucx(ucx().ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config.get(), &context),
            "ucp_init");
  return context;
}

}  // namespace tessera::comm
