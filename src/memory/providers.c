/* SPDX-License-Identifier: MIT
 * The list of providers, places, and the defaults of empty slots. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/fork.h"
#include "memory/provider.h"
#include "memory/ticket.h"

extern const struct provider provider_cuda, provider_gaudi, provider_sim, provider_gpudev,
    provider_p2p, provider_dpdk, provider_host;

static const struct provider *const providers[] = {
    &provider_cuda, &provider_gaudi, &provider_sim, &provider_gpudev,
    &provider_p2p,  &provider_dpdk,  &provider_host};

#define COUNT (sizeof providers / sizeof providers[0])
_Static_assert(COUNT <= PROVIDERS_MAX, "PROVIDERS_MAX");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the next two */
static unsigned users;
static struct haul_error refusals[COUNT]; /* errors of providers that did not start */
static _Atomic bool usable[COUNT];        /* written under the lock, read without */

int providers_start(void) {
  int system = fork_watch();
  if (system != 0)
    return error_system(system, NULL, "madvise(MADV_WIPEONFORK)");
  pthread_mutex_lock(&lock);
  bool first = users++ == 0;
  for (size_t i = 0; first && i < COUNT; i++) {
    refusals[i] = (struct haul_error){0};
    int status = providers[i]->start ? providers[i]->start() : 0;
    if (status != 0)
      error_save(&refusals[i]);
    atomic_store(&usable[i], status == 0);
  }
  pthread_mutex_unlock(&lock);
  return 0;
}

void providers_stop(void) {
  /* The engines' threads do not exist in a child, and the lock may stay locked. */
  if (fork_is_child())
    return;
  pthread_mutex_lock(&lock);
  users--;
  for (size_t i = COUNT; users == 0 && i-- > 0;)
    if (atomic_exchange(&usable[i], false) && providers[i]->stop)
      providers[i]->stop();
  pthread_mutex_unlock(&lock);
}

const struct provider *provider_at(size_t index) {
  return index < COUNT ? providers[index] : NULL;
}

static size_t index_of(uint16_t kind) {
  size_t i = 0;
  while (i < COUNT && providers[i]->kind != kind)
    i++;
  return i;
}

const struct provider *provider_of(uint16_t kind) {
  return provider_at(index_of(kind));
}

unsigned provider_devices(const struct provider *provider) {
  size_t i = index_of(provider->kind);
  if (i == COUNT || !atomic_load_explicit(&usable[i], memory_order_acquire))
    return 0;
  return provider->devices ? provider->devices() : 1;
}

static int unknown_place(const char *object) {
  char kinds[80]; /* "host, sim:N" */
  size_t used = 0;
  for (size_t i = COUNT; i-- > 0 && used < sizeof kinds;)
    used += (size_t)snprintf(kinds + used, sizeof kinds - used, "%s%s%s", used ? ", " : "",
                             providers[i]->name, providers[i]->numbered ? ":N" : "");
  return error_set(HAUL_EPLACE, 0, object, error_hint("write one of: %s", kinds),
                   "no place is written like this");
}

/* The kind is known, but the device does not exist: lists the devices, or why there are none. */
static int missing_device(const struct provider *provider, struct haul_place place) {
  char object[32];
  haul_place_format(place, object, sizeof object);
  unsigned devices = provider_devices(provider);
  if (devices > 0)
    return error_set(HAUL_EPLACE, 0, object, "haul_device_list shows the places there are",
                     "%s has %u device%s, counted from 0", provider->name, devices,
                     devices == 1 ? "" : "s");
  struct haul_error why;
  pthread_mutex_lock(&lock);
  why = refusals[index_of(provider->kind)];
  pthread_mutex_unlock(&lock);
  if (why.code == 0 && provider->why_none && provider->why_none() != 0)
    error_save(&why);
  if (why.code == 0)
    return error_set(HAUL_EPLACE, 0, object, "haul_check_list says what is missing",
                     "%s has no devices here", provider->name);
  return error_set(HAUL_EPLACE, why.system, object, why.hint, "%s", why.text);
}

static int find_place(struct haul_place place, const struct provider **provider) {
  *provider = provider_of(place.kind);
  if (!*provider) {
    char object[32];
    return unknown_place(haul_place_format(place, object, sizeof object));
  }
  if (place.device >= provider_devices(*provider))
    return missing_device(*provider, place);
  return 0;
}

/* A decimal number without sign, blanks or leading zero. */
static bool parse_device(const char *text, uint16_t *device) {
  unsigned value = 0;
  if (!*text || (text[0] == '0' && text[1]))
    return false;
  for (; *text; text++) {
    if (*text < '0' || *text > '9')
      return false;
    value = value * 10 + (unsigned)(*text - '0');
    if (value > UINT16_MAX)
      return false;
  }
  *device = (uint16_t)value;
  return true;
}

HAUL_API int haul_place_parse(const char *text, struct haul_place *place) {
  int status = error_enter("haul_place_parse");
  if (status != 0)
    return status;
  if (!text || !place)
    return error_set(HAUL_EINVAL, 0, NULL, "pass both", "text or place is NULL");
  for (size_t i = 0; i < COUNT; i++) {
    size_t length = strlen(providers[i]->name);
    if (strncmp(text, providers[i]->name, length) != 0)
      continue;
    struct haul_place found = {.kind = providers[i]->kind};
    bool whole = providers[i]->numbered
                     ? text[length] == ':' && parse_device(text + length + 1, &found.device)
                     : text[length] == '\0';
    if (whole) {
      *place = found;
      return 0;
    }
  }
  return unknown_place(text);
}

HAUL_API const char *haul_place_format(struct haul_place place, char *text, size_t size) {
  const struct provider *provider = provider_of(place.kind);
  if (!provider)
    snprintf(text, size, "kind %u:%u", place.kind, place.device);
  else if (provider->numbered || place.device != 0)
    snprintf(text, size, "%s:%u", provider->name, place.device);
  else
    snprintf(text, size, "%s", provider->name);
  return text;
}

static int not_supported(const struct provider *provider, const char *what) {
  return error_set(HAUL_ENOTSUP, 0, provider->name, "use host memory",
                   "this kind of memory cannot %s", what);
}

static int alloc_at(struct haul_place place, size_t length, unsigned flags, bool waits,
                    struct memory *memory) {
  const struct provider *provider;
  if (length == 0)
    return error_set(HAUL_EINVAL, 0, NULL, "ask for at least one byte", "the length is 0");
  if (flags & ~(HAUL_REGION_PRIVATE | HAUL_REGION_PINNED))
    return error_set(HAUL_EINVAL, 0, NULL, "use HAUL_REGION_… or 0", "unknown flags 0x%x", flags);
  if (flags & HAUL_REGION_PINNED && place.kind != HAUL_HOST)
    return error_set(HAUL_EINVAL, 0, NULL, "leave HAUL_REGION_PINNED out for devices",
                     "only host memory can be pinned");
  int status = find_place(place, &provider);
  if (status != 0)
    return status;
  if (!provider->alloc)
    return not_supported(provider, "be allocated");
  *memory = (struct memory){.provider = provider,
                            .place = place,
                            .private = flags & HAUL_REGION_PRIVATE,
                            .may_wait = waits,
                            .may_pin = flags & HAUL_REGION_PINNED};
  return provider->alloc(place.device, length, flags, memory);
}

int memory_alloc(struct haul_place place, size_t length, unsigned flags, struct memory *memory) {
  return alloc_at(place, length, flags, false, memory);
}

int memory_alloc_wait(struct haul_place place, size_t length, unsigned flags,
                      struct memory *memory) {
  return alloc_at(place, length, flags, true, memory);
}

int memory_wrap(void *address, size_t length, struct memory *memory) {
  uintptr_t end;
  if (length == 0 || __builtin_add_overflow((uintptr_t)address, length, &end))
    return error_set(HAUL_EINVAL, 0, NULL, "check address and length",
                     "the range is empty or wraps around");
  for (size_t i = 0; i < COUNT; i++) {
    const struct provider *provider = providers[i];
    struct haul_place place = {.kind = provider->kind};
    int owned =
        provider->owns && atomic_load(&usable[i]) ? provider->owns(address, length, &place) : 0;
    if (owned == 0)
      continue;
    if (owned < 0)
      return owned;
    if (!provider->wrap)
      return not_supported(provider, "be wrapped");
    *memory = (struct memory){.provider = provider, .place = place};
    return provider->wrap(address, length, memory);
  }
  return error_set(HAUL_EINVAL, 0, NULL, "check address and length",
                   "no provider knows this memory");
}

int memory_wrap_file(int descriptor, uint64_t offset, size_t length, struct memory *memory) {
  const struct provider *host = provider_of(HAUL_HOST);
  *memory = (struct memory){.provider = host, .place = {HAUL_HOST, 0}};
  return host->wrap_file(descriptor, offset, length, memory);
}

static int export_ipc(const struct memory *memory, unsigned rights, struct ticket *ticket,
                      int *descriptor) {
  if (rights != (HAUL_READ | HAUL_WRITE | HAUL_LEND))
    return error_set(HAUL_EINVAL, 0, memory->provider->name,
                     "use HAUL_READ | HAUL_WRITE | HAUL_LEND", "impossible rights 0x%x", rights);
  int code = memory_ipc_export(memory, ticket, ticket->token);
  if (code)
    return code;
  ticket->has_token = true;
  if (descriptor)
    *descriptor = -1;
  return 0;
}

int memory_export(struct memory *memory, unsigned rights, struct ticket *ticket, int *descriptor) {
  const char *object = memory->provider->name;
  if (rights & HAUL_LEND && memory->wrapped)
    return export_ipc(memory, rights, ticket, descriptor);
  rights &= ~HAUL_LEND;
  if (memory->provider->unshareable)
    return error_set(HAUL_ENOTSUP, 0, object, "publish the region: peers reach it by its name",
                     "%s", memory->provider->unshareable);
  if (!(rights & HAUL_READ) || rights & ~(HAUL_READ | HAUL_WRITE))
    return error_set(HAUL_EINVAL, 0, object, "use HAUL_READ or HAUL_READ | HAUL_WRITE",
                     "impossible rights 0x%x", rights);
  if (!memory->shareable || !memory->provider->export)
    return error_set(HAUL_ENOTSUP, 0, object,
                     "allocate it with haul_region_alloc without HAUL_REGION_PRIVATE",
                     "private, wrapped and imported memory cannot be exported");
  *ticket = (struct ticket){.place = memory->place, .length = memory->length, .rights = rights};
  return memory->provider->export(memory, rights, ticket, descriptor);
}

int error_range(const void *address, size_t length, const char *hint, const char *text) {
  return error_set(HAUL_EINVAL, 0, error_object("%p+%zu", address, length), hint, "%s", text);
}

int error_descriptor(int system, const char *why) {
  return error_set(HAUL_ETICKET, system, NULL, "send its descriptor too", "%s", why);
}

int error_length(size_t length) {
  return error_set(HAUL_ENOMEM, 0, NULL, "ask for less", "%zu bytes are more than any memory has",
                   length);
}

int error_released(const char *object) {
  return error_set(HAUL_ESTALE, 0, object, "ask the owner for a new ticket",
                   "the owner released the memory");
}

int memory_locate(const struct ticket *ticket, struct haul_place *place,
                  const struct provider **provider) {
  int status = 0;
  *place = ticket->place;
  *provider = provider_of(place->kind);
  if (*provider && (*provider)->locate && provider_devices(*provider) > 0)
    status = (*provider)->locate(ticket, &place->device);
  return status ? status : find_place(*place, provider);
}

int memory_ipc_export(const struct memory *memory, struct ticket *ticket,
                      uint8_t token[IPC_TOKEN]) {
  if (!memory->provider->ipc_export)
    return not_supported(memory->provider, "be mapped by IPC");
  *ticket = (struct ticket){
      .place = memory->place, .length = memory->length, .rights = HAUL_READ | HAUL_WRITE};
  memset(token, 0, IPC_TOKEN);
  return memory->provider->ipc_export(memory, ticket, token);
}

int memory_ipc_import(const struct ticket *ticket, const uint8_t token[IPC_TOKEN],
                      struct memory *memory) {
  *memory = (struct memory){.provider = NULL};
  int status = memory_locate(ticket, &memory->place, &memory->provider);
  if (status)
    return status;
  if (!memory->provider->ipc_import)
    return not_supported(memory->provider, "be mapped by IPC");
  return memory->provider->ipc_import(ticket, token, memory);
}

int memory_import(const struct ticket *ticket, int descriptor, struct memory *memory) {
  *memory = (struct memory){.provider = NULL};
  int status = memory_locate(ticket, &memory->place, &memory->provider);
  if (status != 0)
    return status;
  const struct provider *provider = memory->provider;
  if (provider->unshareable)
    return error_set(HAUL_ENOTSUP, 0, provider->name,
                     "publish the region: peers reach it by its name", "%s", provider->unshareable);
  if (!provider->import)
    return not_supported(provider, "be imported");
  return provider->import(ticket, descriptor, memory);
}

int memory_dmabuf(struct memory *memory, int *descriptor, uint64_t *offset) {
  if (!memory->provider->dmabuf)
    return not_supported(memory->provider, "become a dma-buf");
  return memory->provider->dmabuf(memory, descriptor, offset);
}

void memory_free(struct memory *memory) {
  if (memory->pinned_by)
    memory->pinned_by->unpin(memory);
  for (size_t i = 0; memory->view && i < COUNT; i++)
    if (providers[i]->forget)
      providers[i]->forget(memory);
  memory->provider->free(memory);
}

int memory_enroll(struct memory *memory, uint16_t kind) {
  const struct provider *provider = provider_of(kind);
  if (!memory->view)
    return error_set(HAUL_ENOTSUP, 0, memory->provider->name, "use host memory",
                     "the CPU cannot access this memory, so %s cannot register it", provider->name);
  if (!memory->writable)
    return error_set(HAUL_EACCESS, 0, memory->provider->name, "use writable memory",
                     "this memory is read-only, and %s needs write access", provider->name);
  if (memory->enrolled_by)
    return error_set(HAUL_EINVAL, 0, provider->name, "unregister it first",
                     "the region is registered already");
  int status = provider->enroll(memory);
  if (status == 0)
    memory->enrolled_by = provider;
  return status;
}

int memory_dismiss(struct memory *memory) {
  const struct provider *by = memory->enrolled_by;
  if (!by)
    return error_set(HAUL_EINVAL, 0, NULL, "register it first", "the region is not registered");
  int status = by->dismiss(memory);
  if (status == 0)
    memory->enrolled_by = NULL;
  return status;
}

int memory_check(const struct memory *memory) {
  return memory->provider->check ? memory->provider->check(memory) : 0;
}

int memory_event(struct haul_place place, void *event, bool again) {
  const struct provider *provider;
  int code = find_place(place, &provider);
  if (code)
    return code;
  if (!provider->event_look)
    return error_set(HAUL_ENOTSUP, 0, provider->name, "name the GPU of the event in after_at",
                     "this kind of memory has no events");
  return provider->event_look(place.device, event, again);
}

int memory_fence(struct memory *memory, enum fence direction) {
  return memory->provider->fence ? memory->provider->fence(memory, direction) : 0;
}
