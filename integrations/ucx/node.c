/* SPDX-License-Identifier: MIT
 * The node of the process, open as long as there is a memory domain. */
#include "module.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/random.h>
#include <unistd.h>

static struct {
  pthread_mutex_t lock;
  haul_node *node;
  unsigned users;
  pid_t owner; /* process of this state; a forked child has none */
  uint64_t host, process;
  bool listening;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

static ucs_status_t status_of(int code) {
  switch (code) {
  case HAUL_OK:
    return UCS_OK;
  case HAUL_ENOMEM:
    return UCS_ERR_NO_MEMORY;
  case HAUL_ETIMEDOUT:
    return UCS_ERR_TIMED_OUT;
  case HAUL_ECANCELED:
    return UCS_ERR_CANCELED;
  case HAUL_EPEER:
  case HAUL_ECLOSED:
    return UCS_ERR_ENDPOINT_TIMEOUT;
  case HAUL_ECONNECT:
  case HAUL_EADDRESS:
    return UCS_ERR_UNREACHABLE;
  case HAUL_EINVAL:
  case HAUL_ERANGE:
    return UCS_ERR_INVALID_PARAM;
  case HAUL_EACCESS:
  case HAUL_ESTALE:
  case HAUL_ENAME:
    return UCS_ERR_INVALID_ADDR;
  case HAUL_EBUSY:
    return UCS_ERR_BUSY;
  case HAUL_ELIMIT:
    return UCS_ERR_NO_RESOURCE;
  case HAUL_ENOTSUP:
  case HAUL_EFORK:
    return UCS_ERR_UNSUPPORTED;
  case HAUL_EPLACE:
    return UCS_ERR_NO_DEVICE;
  default:
    return UCS_ERR_IO_ERROR;
  }
}

ucs_status_t gaudi_failed(const char *what, ucs_log_level_t level) {
  const struct haul_error *error = haul_error_last();
  ucs_log(level, "gaudi: %s: %s%s%s (%s)", what, error->object, *error->object ? ": " : "",
          error->text, error->hint);
  return status_of(error->code);
}

static uint64_t host_of(uint64_t process) {
  char text[64] = "";
  FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
  uint64_t sum = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
  if (file && fgets(text, sizeof text, file))
    for (const char *at = text; *at; at++)
      sum = (sum ^ (uint8_t)*at) * UINT64_C(0x100000001b3);
  if (file)
    fclose(file);
  return text[0] ? sum : process; /* then no other process counts as of this host */
}

static bool open_all(unsigned imports) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  hook_share_device();
  config.insecure = 1; /* it listens only on abstract Unix sockets */
  haul_node *node;
  if (haul_node_open(&config, &node)) { /* for example in a forked child */
    gaudi_failed("cannot open a haul node", UCS_LOG_LEVEL_ERROR);
    return false;
  }
  state.node = node;
  if (getrandom(&state.process, sizeof state.process, 0) != sizeof state.process)
    state.process = (uint64_t)getpid();
  state.host = host_of(state.process);
  state.users = 0;
  state.listening = false;
  state.owner = getpid();
  gaudi_memory_open();
  gaudi_imports_open(imports);
  return true;
}

bool gaudi_open(unsigned imports) {
  pthread_mutex_lock(&state.lock);
  bool opened = state.users > 0 && state.owner == getpid();
  if (!opened)
    opened = open_all(imports);
  state.users += opened;
  pthread_mutex_unlock(&state.lock);
  return opened;
}

/* Keeps the lock during the close, so that no thread opens it meanwhile. */
void gaudi_close(void) {
  pthread_mutex_lock(&state.lock);
  if (state.owner == getpid() && --state.users == 0) {
    gaudi_counters_log();
    gaudi_imports_close();
    gaudi_memory_close();
    haul_node_close(state.node);
    state.node = NULL;
  }
  pthread_mutex_unlock(&state.lock);
}

haul_node *gaudi_node(void) {
  return state.node;
}

uint64_t gaudi_host(void) {
  return state.host;
}

uint64_t gaudi_process(void) {
  return state.process;
}

/* An abstract Unix socket is reachable within the network namespace, whatever the other namespaces.
 */
void gaudi_node_address(uint64_t process, char address[GAUDI_ADDRESS_ROOM]) {
  snprintf(address, GAUDI_ADDRESS_ROOM, "unix://@haul-ucx-%016" PRIx64, process);
}

ucs_status_t gaudi_node_listen(void) {
  char address[GAUDI_ADDRESS_ROOM];
  int code = 0;
  gaudi_node_address(state.process, address);
  pthread_mutex_lock(&state.lock);
  if (!state.listening)
    code = haul_node_listen(state.node, address);
  state.listening = code == 0;
  pthread_mutex_unlock(&state.lock);
  return code ? gaudi_failed("cannot listen for other processes", UCS_LOG_LEVEL_ERROR) : UCS_OK;
}

void gaudi_devices(struct haul_device *devices, size_t *count) {
  struct haul_device all[64];
  size_t there = 64, room = *count;
  *count = 0;
  if (!state.node || haul_device_list(state.node, all, &there))
    return;
  for (size_t i = 0; i < there && i < 64 && *count < room; i++)
    if (all[i].place.kind == HAUL_GAUDI)
      devices[(*count)++] = all[i];
}
