/* SPDX-License-Identifier: MIT */
#include "plugin.h"

struct plugin plugin = {.lock = PTHREAD_MUTEX_INITIALIZER, .pumping = PTHREAD_MUTEX_INITIALIZER};

/* NCCL's threads poll for as long as they have requests, and keep a processor busy. A thread of the
 * node would compete with them, and each message would wait until the scheduler runs it. So they
 * move the bytes themselves (messages_pump); the keeper does so only while none of them polls, for
 * keep-alives and for what peers send meanwhile. */
#define KEEPER_PAUSE_NS INT64_C(50000000)  /* while NCCL polls */
#define KEEPER_TURN_NS  INT64_C(100000000) /* while it does not; an event ends it */

static struct {
  pthread_t thread;
  bool runs;
  atomic_bool ending;
} keeper;

static void *keep(void *unused) {
  const struct timespec pause = {.tv_nsec = KEEPER_PAUSE_NS};
  (void)unused;
  while (!atomic_load(&keeper.ending))
    if (atomic_exchange(&plugin.polled, false))
      nanosleep(&pause, NULL);
    else
      haul_node_progress(plugin.node, haul_deadline_in(KEEPER_TURN_NS));
  return NULL;
}

static int start_keeper(void) {
  atomic_store(&keeper.ending, false);
  keeper.runs = pthread_create(&keeper.thread, NULL, keep, NULL) == 0;
  return keeper.runs ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
}

static void stop_keeper(void) {
  atomic_store(&keeper.ending, true);
  if (keeper.runs)
    pthread_join(keeper.thread, NULL);
  keeper.runs = false;
}

int warn_library(const char *what) {
  const struct haul_error *error = haul_error_last();
  WARN("NET/haul: %s: %s%s%s%s", what, error->text, error->object[0] ? " (" : "", error->object,
       error->object[0] ? ")" : "");
  if (error->hint[0])
    WARN("NET/haul:   %s", error->hint);
  switch (error->code) {
  case HAUL_EINVAL:
  case HAUL_EPLACE:
    return NCCL_INVALID_ARGUMENT;
  case HAUL_EPEER:
  case HAUL_ECONNECT:
  case HAUL_ETIMEDOUT:
  case HAUL_ESTALE:
    return NCCL_REMOTE_ERROR;
  default:
    return NCCL_SYSTEM_ERROR;
  }
}

static int plugin_open_node(void) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.peer_events = 1;
  config.insecure = 1; /* no encryption, like NCCL's own transports */
  config.progress = HAUL_PROGRESS_CALLER;
  if (haul_node_open(&config, &plugin.node))
    return warn_library("cannot open a node");
  for (unsigned i = 0; i < plugin.device_count; i++)
    if (haul_node_listen(plugin.node, plugin.devices[i].address))
      return warn_library("cannot listen");
  return start_keeper();
}

static void close_all(void) {
  workers_close();
  stop_keeper();
  haul_node_close(plugin.node);
  plugin.node = NULL;
  plugin.device_count = 0;
}

static int open_all(void) {
  list_init(&plugin.listeners);
  list_init(&plugin.comms);
  list_init(&plugin.routes);
  plugin.device_count = devices_find(plugin.devices, DEVICES_MAX);
  if (plugin.device_count == 0) {
    WARN("NET/haul: no selected network interface is up (hint: set NCCL_SOCKET_IFNAME)");
    return NCCL_SYSTEM_ERROR;
  }
  int result = workers_open();
  if (!result)
    result = plugin_open_node();
  if (result)
    close_all();
  return result;
}

int plugin_init(nccl_logger *logger) {
  int result = NCCL_SUCCESS;
  pthread_mutex_lock(&plugin.lock);
  plugin.logger = logger;
  if (plugin.users == 0)
    result = open_all();
  if (!result && plugin.users++ == 0)
    for (unsigned i = 0; i < plugin.device_count; i++)
      INFO("NET/haul: %s at %s, not encrypted", plugin.devices[i].name, plugin.devices[i].address);
  pthread_mutex_unlock(&plugin.lock);
  return result;
}

/* Versions before 11 never call it: their node stays open. */
int plugin_finalize(void) {
  pthread_mutex_lock(&plugin.lock);
  bool last = plugin.users > 0 && --plugin.users == 0;
  pthread_mutex_unlock(&plugin.lock);
  if (last)
    close_all();
  return NCCL_SUCCESS;
}

int plugin_devices(int *count) {
  *count = (int)plugin.device_count;
  return NCCL_SUCCESS;
}

/* Whether haul supports a GPU here, and so its memory. */
static bool has_gpu(void) {
  struct haul_device devices[32];
  size_t count = sizeof devices / sizeof devices[0];
  if (haul_device_list(plugin.node, devices, &count) != 0)
    return false;
  for (size_t i = 0; i < count && i < sizeof devices / sizeof devices[0]; i++)
    if (devices[i].place.kind == HAUL_CUDA)
      return true;
  return false;
}

#define SEND_MAX ((size_t)1 << 30) /* bytes; test() returns sizes as int */

int plugin_properties(int number, struct nccl_properties_12 *properties) {
  if (number < 0 || (unsigned)number >= plugin.device_count)
    return NCCL_INVALID_ARGUMENT;
  struct device *device = &plugin.devices[number];
  *properties = (struct nccl_properties_12){
      .name = device->name,
      .pci_path = device->pci[0] ? device->pci : NULL,
      .guid = device->guid,
      .pointers = NCCL_POINTER_HOST | (has_gpu() ? NCCL_POINTER_CUDA | NCCL_POINTER_DMABUF : 0),
      .speed = device->speed,
      .port = device->port,
      .max_comms = 65536,
      .max_receives = GROUP_MAX,
      .virtual_count = 1,
      .virtual_devices = {number},
      .max_p2p = SEND_MAX,
      .max_collective = SEND_MAX,
      .max_multi_request = 1,
      .rail = -1,
      .plane = -1,
  };
  return NCCL_SUCCESS;
}
