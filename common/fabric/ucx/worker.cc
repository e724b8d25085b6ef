#include "common/fabric/ucx/worker.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "oasiskv/error.h"

namespace oasiskv::fabric::ucx {
namespace {

struct Setting {
  const char* key;  // as in the environment, without UCX_
  const char* value;
  const char* table;  // the part of the key that names a transport's table; before 1.17 UCX wants
                      // the key without it
};

// What we change of UCX's defaults, each unless the operator has set the variable.
constexpr Setting kSettings[] = {
    // A Data or WriteRequest message of kMaxPayloadBytes goes and arrives as one segment.
    {"TCP_TX_SEG_SIZE", "160K", "TCP_"},
    {"TCP_RX_SEG_SIZE", "256K", "TCP_"},
    {"TCP_MAX_IOV", "16", "TCP_"},
    // From this size on the kernel takes the bytes from where they lie, not from a copy that UCX
    // makes first.
    {"ZCOPY_THRESH", "4K", ""},
    // A client that cannot be reached must not hold up the daemon's thread in connect().
    {"TCP_CONN_NB", "y", "TCP_"},
    // A daemon that restarts binds its old port although connections of its earlier life linger in
    // TIME_WAIT.
    {"TCP_CM_REUSEADDR", "y", "TCP_"},
};

// And where there are RDMA devices: both sides must be set alike, for UCX aborts when the lanes
// that they choose do not match.
constexpr Setting kRdmaSettings[] = {
    // The most that every device takes for a number: some (soft-RoCE) take 7 for "as often as it
    // needs", and a dead peer would never be noticed.
    {"RC_RETRY_COUNT", "6", ""},
    // One lane for all: a second device would only take part in rendezvous, which there is none of.
    {"MAX_RNDV_RAILS", "1", ""},
    // It asks the other side's processor, over UD. The daemon sends pings instead.
    {"KEEPALIVE_INTERVAL", "inf", ""},
};

bool HasRdmaDevice() {
  std::error_code error;
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", error);
  return !error && devices != std::filesystem::directory_iterator();
}

struct ConfigDeleter {
  void operator()(ucp_config_t* config) const { ucp_config_release(config); }
};
using Config = std::unique_ptr<ucp_config_t, ConfigDeleter>;

absl::StatusOr<Config> MakeConfig(Worker::Family family, std::string& transports) {
  ucp_config_t* raw = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &raw);
  if (status != UCS_OK) return UcxError("cannot read UCX's configuration", status);
  Config config(raw);
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  const bool whole_keys = major > 1 || minor >= 17;
  std::vector<Setting> settings(std::begin(kSettings), std::end(kSettings));
  const char* own_transports = HasRdmaDevice() ? "rc,tcp" : "tcp";
  settings.push_back({"TLS", own_transports, ""});
  const char* tls = std::getenv("UCX_TLS");
  transports = tls != nullptr ? tls : own_transports;
  // Not for TCP alone: UCX warns of what it has no use for.
  if (HasRdmaDevice() && transports != "tcp") {
    settings.insert(settings.end(), std::begin(kRdmaSettings), std::end(kRdmaSettings));
  }
  if (family == Worker::Family::kIpv6) settings.push_back({"TCP_AF_PRIO", "inet6,inet", "TCP_"});
  for (const Setting& setting : settings) {
    if (std::getenv(absl::StrCat("UCX_", setting.key).c_str()) != nullptr) continue;
    const char* key = whole_keys ? setting.key : setting.key + std::strlen(setting.table);
    status = ucp_config_modify(config.get(), key, setting.value);
    if (status != UCS_OK) {
      return UcxError(absl::StrCat("UCX does not take ", key, "=", setting.value), status);
    }
  }
  return config;
}

void DeleteMessage(Message* message, ucs_status_t status) {
  message->OnSent(status == UCS_OK);
  delete message;
}

void OnSendComplete(void* request, ucs_status_t status, void* message) {
  ucp_request_free(request);
  DeleteMessage(static_cast<Message*>(message), status);
}

}  // namespace

std::string Lane::ToString() const {
  return device.empty() ? transport : absl::StrCat(transport, "/", device);
}

// The first of the lines such as
//   #   lane[2]:  2:rc_verbs/rxe0:1.0 md[1] -> md[1]/ib/sysdev[255] rma_bw#0 am am_bw#0
// that messages go over.
Lane ParseLane(absl::string_view text) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar("# \t"), absl::SkipEmpty());
    if (words.size() < 2 || !absl::StartsWith(words[0], "lane[")) continue;
    const std::vector<absl::string_view> place = absl::StrSplit(words[1], absl::MaxSplits('/', 1));
    if (place.size() < 2 || !absl::StrContains(line, " am")) continue;
    Lane lane;
    const size_t colon = place[0].find(':');  // behind the number of the resource
    lane.transport =
        std::string(colon == absl::string_view::npos ? place[0] : place[0].substr(colon + 1));
    lane.device = std::string(place[1].substr(0, place[1].rfind('.')));  // then the path's number
    return lane;
  }
  return {};
}

bool IsUnusableIpv6(const sockaddr* address) {
  if (address->sa_family != AF_INET6) return false;
  const in6_addr& ip = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&ip) || IN6_IS_ADDR_LINKLOCAL(&ip) || IN6_IS_ADDR_V4MAPPED(&ip);
}

absl::StatusOr<SocketAddress> UcxAddress(const Address& address) {
  OASISKV_ASSIGN_OR_RETURN(const SocketAddress resolved, Resolve(address));
  if (!IsUnusableIpv6(resolved.get())) return resolved;
  const in6_addr& ip = reinterpret_cast<const sockaddr_in6*>(resolved.get())->sin6_addr;
  if (IN6_IS_ADDR_LOOPBACK(&ip)) return Resolve(Address{"127.0.0.1", address.port});
  return MakeError(ErrorCode::kInvalidArgument,
                   absl::StrCat("UCX cannot use ", address.ToString(),
                                ": give an IPv4 or a global IPv6 address"));
}

absl::Status UcxError(absl::string_view what, int ucs_status) {
  return MakeError(
      ErrorCode::kInternal,
      absl::StrCat(what, ": ", ucs_status_string(static_cast<ucs_status_t>(ucs_status))));
}

struct Worker::Slot {
  ArrivalHandler* handler;
  unsigned id;

  static ucs_status_t OnMessage(void* arg, const void* header, size_t header_length, void* data,
                                size_t length, const ucp_am_recv_param_t* param) {
    const Slot* slot = static_cast<const Slot*>(arg);
    Arrival arrival;
    arrival.id = slot->id;
    arrival.header = {static_cast<const std::byte*>(header), header == nullptr ? 0 : header_length};
    if (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) arrival.from = param->reply_ep;
    arrival.whole = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
    if (arrival.whole) arrival.payload = {static_cast<const std::byte*>(data), length};
    slot->handler->OnArrival(arrival);
    return UCS_OK;  // the payload was used or copied; a rendezvous that was not taken up is dropped
  }
};

absl::StatusOr<std::unique_ptr<Worker>> Worker::Create(ArrivalHandler& handler, Family family) {
  std::unique_ptr<Worker> out(new Worker);
  auto config = MakeConfig(family, out->transports_);
  if (!config.ok()) return config.status();
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucs_status_t status = ucp_init(&params, config->get(), &out->context_);
  if (status != UCS_OK) {
    return UcxError(absl::StrCat("UCX finds no usable transport among UCX_TLS=", out->transports_),
                    status);
  }
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucp_worker_create(out->context_, &worker_params, &out->worker_);
  if (status != UCS_OK) return UcxError("cannot make a UCX worker", status);
  status = ucp_worker_get_efd(out->worker_, &out->event_fd_);
  if (status != UCS_OK) return UcxError("UCX's worker has no event descriptor", status);
  out->wake_fd_ = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!out->wake_fd_) {
    return MakeError(ErrorCode::kInternal, absl::StrCat("eventfd: ", std::strerror(errno)));
  }
  out->slots_.reserve(kMessageIds);
  for (unsigned id = 0; id < kMessageIds; ++id) {
    out->slots_.push_back({&handler, id});
    ucp_am_handler_param_t am{};
    am.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                    UCP_AM_HANDLER_PARAM_FIELD_ARG;
    am.id = id;
    am.cb = &Slot::OnMessage;
    am.arg = &out->slots_.back();
    status = ucp_worker_set_am_recv_handler(out->worker_, &am);
    if (status != UCS_OK) return UcxError("cannot register an active-message handler", status);
  }
  return out;
}

Worker::~Worker() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

Lane Worker::LaneOf(ucp_ep* endpoint) const {
  char* text = nullptr;
  size_t bytes = 0;
  std::FILE* stream = ::open_memstream(&text, &bytes);
  if (stream == nullptr) return {};
  ucp_ep_print_info(endpoint, stream);
  std::fclose(stream);
  Lane lane = ParseLane({text, bytes});
  std::free(text);
  return lane;
}

bool Worker::Progress() { return ucp_worker_progress(worker_) != 0; }

void Worker::Send(ucp_ep* endpoint, std::unique_ptr<Message> message, Reply reply) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_DATATYPE;
  param.cb.send = &OnSendComplete;
  param.user_data = message.get();
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  if (reply == Reply::kYes) param.flags |= UCP_AM_SEND_FLAG_REPLY;
  param.datatype = ucp_dt_make_contig(1);
  const void* buffer = message->owned.data();
  size_t count = message->owned.size();
  // A span is what ucp_dt_iov_t is, but only by accident of layout: build the real thing.
  std::vector<ucp_dt_iov_t> iov;
  if (message->gather.size() == 1) {
    buffer = message->gather.front().data();
    count = message->gather.front().size();
  } else if (!message->gather.empty()) {
    iov.reserve(message->gather.size());
    for (std::span<const std::byte> piece : message->gather) {
      iov.push_back({const_cast<std::byte*>(piece.data()), piece.size()});
    }
    message->owned.resize(iov.size() * sizeof(ucp_dt_iov_t));  // must last as long as the message
    std::memcpy(message->owned.data(), iov.data(), message->owned.size());
    param.datatype = UCP_DATATYPE_IOV;
    buffer = message->owned.data();
    count = iov.size();
  }
  ucs_status_ptr_t sent =
      ucp_am_send_nbx(endpoint, static_cast<unsigned>(message->id), message->header.data(),
                      message->header.size(), buffer, count, &param);
  if (!UCS_PTR_IS_PTR(sent)) {
    DeleteMessage(message.release(), UCS_PTR_STATUS(sent));
  } else {
    static_cast<void>(message.release());  // OnSendComplete has it now
  }
}

void Worker::Sleep(MonotonicTime until) {
  sleeping_.store(true);
  if (!woken_.exchange(false)) {
    // UCS_ERR_BUSY: something came in since the last Progress. A plain verbs device makes no event
    // of what came just before it was armed, so that one has to look once more.
    if (ucp_worker_arm(worker_) == UCS_OK && (transports_ == "tcp" || !Progress())) {
      const Duration left = until - std::chrono::steady_clock::now();
      const int64_t nanos = left.count() > 0 ? left.count() : 0;
      timespec timeout{.tv_sec = static_cast<time_t>(nanos / 1'000'000'000),
                       .tv_nsec = static_cast<long>(nanos % 1'000'000'000)};
      pollfd fds[2] = {{event_fd_, POLLIN, 0}, {wake_fd_.get(), POLLIN, 0}};
      ::ppoll(fds, 2, until == MonotonicTime::max() ? nullptr : &timeout, nullptr);
      if (fds[1].revents != 0) {
        uint64_t ignored;
        (void)!::read(wake_fd_.get(), &ignored, sizeof(ignored));
      }
    }
    woken_.store(false);
  }
  sleeping_.store(false);
}

void Worker::Wake() {
  woken_.store(true);
  if (sleeping_.load()) {
    const uint64_t one = 1;
    (void)!::write(wake_fd_.get(), &one, sizeof(one));
  }
}

void* Worker::StartClose(ucp_ep* endpoint) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint, &param);
  if (UCS_PTR_IS_ERR(request)) {
    LogWarning("ucx",
               absl::StrCat("closing an endpoint: ", ucs_status_string(UCS_PTR_STATUS(request))));
  }
  return UCS_PTR_IS_PTR(request) ? request : nullptr;
}

bool Worker::Closed(void* request) {
  if (request == nullptr) return true;
  if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
  ucp_request_free(request);
  return true;
}

}  // namespace oasiskv::fabric::ucx
