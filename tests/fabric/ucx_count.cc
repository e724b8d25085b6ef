// UCX's one-sided get of 8 KiB, for callgrind to count what each costs (see count-instructions):
// ucx_count ENTRIES WINDOW. Both ends are in this process, over whatever UCX_TLS and
// UCX_NET_DEVICES say. A window is posted, then left alone until its bytes are there, so that
// looking for completions in vain, which a slow network multiplies, is not counted against UCX.
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr size_t kEntryBytes = 8192;

void Must(ucs_status_t status, const char* what) {
  if (status == UCS_OK) return;
  std::fprintf(stderr, "ucx_count: %s: %s\n", what, ucs_status_string(status));
  std::exit(1);
}

// Thread contract: used by one thread. One end; lives until the process ends.
struct End {
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;

  End() {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_RMA;
    Must(ucp_init(&params, nullptr, &context), "ucp_init");
    ucp_worker_params_t worker_params{};
    worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
    Must(ucp_worker_create(context, &worker_params, &worker), "ucp_worker_create");
  }
};

uint32_t outstanding = 0;

void GetEnded(void* request, ucs_status_t status, void*) {
  Must(status, "get");
  --outstanding;
  ucp_request_free(request);
}

// Longer than a window takes on its way; and how long to leave it alone once more when it is not.
constexpr useconds_t kWindowMicros = 60'000;
constexpr useconds_t kMoreMicros = 10'000;

// What is counted, and a function of its own for that.
template <typename Get>
[[gnu::noinline]] void Windows(ucp_worker_h worker, long entries, long window, const Get& get) {
  for (long done = 0; done < entries; done += window) {
    for (long i = 0; i < window; ++i) get(i);
    ::usleep(kWindowMicros);
    while (outstanding > 0) {
      if (ucp_worker_progress(worker) == 0) ::usleep(kMoreMicros);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const long entries = argc == 3 ? std::atol(argv[1]) : 0;
  const long window = argc == 3 ? std::atol(argv[2]) : 0;
  if (window <= 0 || entries <= 0 || entries % window != 0) {
    std::fprintf(stderr, "usage: ucx_count ENTRIES WINDOW, a multiple of the other\n");
    return 2;
  }
  End server, client;
  std::vector<unsigned char> memory(static_cast<size_t>(window) * kEntryBytes, 0x5a);
  std::vector<unsigned char> buffer(memory.size());

  ucp_mem_map_params_t map{};
  map.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  map.address = memory.data();
  map.length = memory.size();
  ucp_mem_h handle = nullptr;
  Must(ucp_mem_map(server.context, &map, &handle), "ucp_mem_map");
  void* packed = nullptr;
  size_t packed_size = 0;
  Must(ucp_rkey_pack(server.context, handle, &packed, &packed_size), "ucp_rkey_pack");
  ucp_address_t* address = nullptr;
  size_t address_size = 0;
  Must(ucp_worker_get_address(server.worker, &address, &address_size), "ucp_worker_get_address");
  ucp_ep_params_t to{};
  to.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  to.address = address;
  ucp_ep_h ep = nullptr;
  Must(ucp_ep_create(client.worker, &to, &ep), "ucp_ep_create");
  ucp_rkey_h rkey = nullptr;
  Must(ucp_ep_rkey_unpack(ep, packed, &rkey), "ucp_ep_rkey_unpack");

  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK;
  param.cb.send = GetEnded;
  const auto get = [&](long i) {
    const size_t at = static_cast<size_t>(i) * kEntryBytes;
    const ucs_status_ptr_t request =
        ucp_get_nbx(ep, buffer.data() + at, kEntryBytes,
                    reinterpret_cast<uint64_t>(memory.data()) + at, rkey, &param);
    if (UCS_PTR_IS_ERR(request)) Must(UCS_PTR_STATUS(request), "ucp_get_nbx");
    if (request != nullptr) ++outstanding;
  };
  // The first get connects; both ends take part in that, and in nothing after it.
  get(0);
  while (outstanding > 0) {
    const unsigned seen = ucp_worker_progress(client.worker) + ucp_worker_progress(server.worker);
    if (seen == 0) ::usleep(kMoreMicros);  // or the runs differ by looks in vain
  }
  Windows(client.worker, entries, window, get);
  std::printf("entries=%ld\n", entries);
  std::fflush(stdout);
  ::_exit(std::memcmp(buffer.data(), memory.data(), memory.size()) == 0 ? 0 : 1);
}
