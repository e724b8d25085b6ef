// What soft-RoCE devices of the guest's kernel (6.1) leave out, for programs that preload this
// library: the event IBV_EVENT_QP_LAST_WQE_REACHED, which tells that a queue pair in the error
// state takes no more receives from its shared queue. NICs make it, and UCX destroys a queue pair
// of a closed endpoint only when it has come: without it each stays until its worker goes.
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <set>

namespace {

// What the device tells, and what is told besides.
struct Pipe {
  int reader = -1, writer = -1;
};

std::mutex mutex;
// By the descriptor of the device's own events. Never freed: other threads may outlive this
// library's end.
std::map<int, Pipe>& Pipes() {
  static auto* pipes = new std::map<int, Pipe>;
  return *pipes;
}

Pipe PipeOf(int async_fd) {
  const std::lock_guard lock(mutex);
  const auto found = Pipes().find(async_fd);
  return found == Pipes().end() ? Pipe() : found->second;
}

// Queue pairs of which it was told: it is told once.
std::set<ibv_qp*>& Told() {
  static auto* told = new std::set<ibv_qp*>;
  return *told;
}

bool IsFirst(ibv_qp* qp) {
  const std::lock_guard lock(mutex);
  return Told().insert(qp).second;
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

ibv_context* ibv_open_device(ibv_device* device) {
  static auto* const next = Next<ibv_context*(ibv_device*)>("ibv_open_device");
  ibv_context* context = next(device);
  int ends[2];
  if (context == nullptr || ::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return context;
  const std::lock_guard lock(mutex);
  Pipes()[context->async_fd] = {ends[0], ends[1]};
  return context;
}

int ibv_close_device(ibv_context* context) {
  static auto* const next = Next<int(ibv_context*)>("ibv_close_device");
  {
    const std::lock_guard lock(mutex);
    const auto found = Pipes().find(context->async_fd);
    if (found != Pipes().end()) {
      ::close(found->second.reader);
      ::close(found->second.writer);
      Pipes().erase(found);
    }
  }
  return next(context);
}

// Who waits for the device's events waits for these, under the same name.
int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) {
  static auto* const next = Next<int(int, int, int, epoll_event*)>("epoll_ctl");
  const Pipe pipe = PipeOf(fd);
  if (pipe.reader >= 0) next(epoll, operation, pipe.reader, event);
  return next(epoll, operation, fd, event);
}

int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  static auto* const next = Next<int(ibv_qp*, ibv_qp_attr*, int)>("ibv_modify_qp");
  const int result = next(qp, attributes, mask);
  if (result != 0 || (mask & IBV_QP_STATE) == 0 || attributes->qp_state != IBV_QPS_ERR ||
      qp->srq == nullptr || !IsFirst(qp)) {
    return result;
  }
  ibv_async_event event{};
  event.event_type = IBV_EVENT_QP_LAST_WQE_REACHED;
  event.element.qp = qp;
  const Pipe pipe = PipeOf(qp->context->async_fd);
  if (pipe.writer >= 0) (void)!::write(pipe.writer, &event, sizeof(event));
  return result;
}

int ibv_destroy_qp(ibv_qp* qp) {
  static auto* const next = Next<int(ibv_qp*)>("ibv_destroy_qp");
  {
    const std::lock_guard lock(mutex);
    Told().erase(qp);
  }
  return next(qp);
}

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  static auto* const next = Next<int(ibv_context*, ibv_async_event*)>("ibv_get_async_event");
  const Pipe pipe = PipeOf(context->async_fd);
  if (pipe.reader >= 0 && ::read(pipe.reader, event, sizeof(*event)) == sizeof(*event)) return 0;
  return next(context, event);
}

void ibv_ack_async_event(ibv_async_event* event) {
  static auto* const next = Next<void(ibv_async_event*)>("ibv_ack_async_event");
  if (event->event_type != IBV_EVENT_QP_LAST_WQE_REACHED) next(event);
}

}  // extern "C"
#pragma GCC visibility pop
