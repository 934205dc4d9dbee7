/* SPDX-License-Identifier: MIT
 * The plugin's interface.h against the headers of a version of NIXL: see the script `headers`. */
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "interface.h"

#include "backend/backend_plugin.h"

namespace ours = haul_nixl;

static int failures;

static void same(const char *what, unsigned long long here, unsigned long long there) {
  if (here == there)
    return;
  printf("%s: haul has %llu, NIXL %llu\n", what, here, there);
  failures++;
}

/* What a caller passes for a type: an address, or a value of its size and class. */
template <typename Type> unsigned long long passed() {
  if constexpr (std::is_reference_v<Type> || std::is_pointer_v<Type>)
    return 1;
  else if constexpr (std::is_void_v<Type>)
    return 2;
  else
    return 100 * sizeof(Type) + 10 * std::is_class_v<Type> + std::is_trivially_copyable_v<Type>;
}

struct Call {
  unsigned long long slot = 0; /* in the virtual table; 0: not virtual */
  std::vector<unsigned long long> types;
};

template <typename Pointer> unsigned long long slot_of(Pointer pointer) {
  uintptr_t words[2];
  static_assert(sizeof pointer == sizeof words);
  memcpy(words, &pointer, sizeof words);
  return words[0] & 1 ? words[0] : 0; /* Itanium C++ ABI, 2.3: 1 + the offset in the table */
}

template <typename Class, typename Result, typename... Arguments>
Call call_of(Result (Class::*pointer)(Arguments...)) {
  return {slot_of(pointer), {passed<Result>(), passed<Arguments>()...}};
}

template <typename Class, typename Result, typename... Arguments>
Call call_of(Result (Class::*pointer)(Arguments...) const) {
  return {slot_of(pointer), {passed<Result>(), passed<Arguments>()...}};
}

static void same_call(const char *name, const Call &here, const Call &there) {
  same((std::string("slot of ") + name).c_str(), here.slot, there.slot);
  same((std::string("parameters of ") + name).c_str(), here.types.size(), there.types.size());
  for (size_t i = 0; i < here.types.size() && i < there.types.size(); i++)
    same((std::string("type ") + std::to_string(i) + " of " + name).c_str(), here.types[i],
         there.types[i]);
  if (!here.slot)
    same(name, 0, 1);
}

#define SIZE(OURS, THEIRS) same("size of " #OURS, sizeof(ours::OURS), sizeof(THEIRS))
#define MEMBER(OURS, OUR_MEMBER, THEIRS, THEIR_MEMBER)                                             \
  same("offset of " #OURS "::" #OUR_MEMBER, offsetof(ours::OURS, OUR_MEMBER),                      \
       offsetof(THEIRS, THEIR_MEMBER));                                                            \
  same("size of " #OURS "::" #OUR_MEMBER, sizeof(ours::OURS::OUR_MEMBER),                          \
       sizeof(THEIRS::THEIR_MEMBER))
#define VALUE(OURS, THEIRS)                                                                        \
  same("value of " #OURS, static_cast<unsigned long long>(ours::OURS),                             \
       static_cast<unsigned long long>(THEIRS))
#define CALL(OURS, THEIRS)                                                                         \
  same_call(#OURS, call_of(&ours::Backend::OURS), call_of(&nixlBackendEngine::THEIRS))

static void compare_values() {
  VALUE(API_VERSION, NIXL_PLUGIN_API_VERSION);
  VALUE(DRAM, DRAM_SEG);
  VALUE(VRAM, VRAM_SEG);
  VALUE(BLOCK, BLK_SEG);
  VALUE(OBJECT, OBJ_SEG);
  VALUE(FILES, FILE_SEG);
  VALUE(READ, NIXL_READ);
  VALUE(WRITE, NIXL_WRITE);
  VALUE(ANALYTICAL, nixl_cost_t::ANALYTICAL_BACKEND);
  VALUE(IN_PROGRESS, NIXL_IN_PROG);
  VALUE(SUCCESS, NIXL_SUCCESS);
  VALUE(NOT_POSTED, NIXL_ERR_NOT_POSTED);
  VALUE(INVALID_PARAMETER, NIXL_ERR_INVALID_PARAM);
  VALUE(BACKEND_ERROR, NIXL_ERR_BACKEND);
  VALUE(NOT_FOUND, NIXL_ERR_NOT_FOUND);
  VALUE(MISMATCH, NIXL_ERR_MISMATCH);
  VALUE(NOT_ALLOWED, NIXL_ERR_NOT_ALLOWED);
  VALUE(REPOST_ACTIVE, NIXL_ERR_REPOST_ACTIVE);
  VALUE(UNKNOWN, NIXL_ERR_UNKNOWN);
  VALUE(NOT_SUPPORTED, NIXL_ERR_NOT_SUPPORTED);
  VALUE(REMOTE_DISCONNECT, NIXL_ERR_REMOTE_DISCONNECT);
  VALUE(CANCELED, NIXL_ERR_CANCELED);
}

static void compare_layouts() {
  SIZE(MemoryKind, nixl_mem_t);
  SIZE(Operation, nixl_xfer_op_t);
  SIZE(Status, nixl_status_t);
  SIZE(CostMethod, nixl_cost_t);
  SIZE(Parameters, nixl_b_params_t);
  SIZE(Memories, nixl_mem_list_t);
  SIZE(Notifications, notif_list_t);
  SIZE(Metadata, nixlBackendMD);
  SIZE(Handle, nixlBackendReqH);
  SIZE(Descriptor, nixlBasicDesc);
  MEMBER(Descriptor, address, nixlBasicDesc, addr);
  MEMBER(Descriptor, length, nixlBasicDesc, len);
  MEMBER(Descriptor, device, nixlBasicDesc, devId);
  SIZE(BlobDescriptor, nixlBlobDesc);
  MEMBER(BlobDescriptor, blob, nixlBlobDesc, metaInfo);
  SIZE(MetaDescriptor, nixlMetaDesc);
  MEMBER(MetaDescriptor, metadata, nixlMetaDesc, metadataP);
  SIZE(MetaList, nixl_meta_dlist_t);
  MEMBER(MetaList, kind, nixl_meta_dlist_t, type);
  MEMBER(MetaList, items, nixl_meta_dlist_t, descs);
  SIZE(BlobList, nixl_reg_dlist_t);
  SIZE(RequestOptions, nixl_opt_b_args_t);
  MEMBER(RequestOptions, notification, nixl_opt_b_args_t, notifMsg);
  MEMBER(RequestOptions, notifies, nixl_opt_b_args_t, hasNotif);
  MEMBER(RequestOptions, custom, nixl_opt_b_args_t, customParam);
  SIZE(InitParameters, nixlBackendInitParams);
  MEMBER(InitParameters, agent, nixlBackendInitParams, localAgent);
  MEMBER(InitParameters, backend, nixlBackendInitParams, type);
  MEMBER(InitParameters, parameters, nixlBackendInitParams, customParams);
  MEMBER(InitParameters, progress_thread, nixlBackendInitParams, enableProgTh);
  MEMBER(InitParameters, progress_delay_us, nixlBackendInitParams, pthrDelay);
  MEMBER(InitParameters, synchronization, nixlBackendInitParams, syncMode);
  MEMBER(InitParameters, telemetry, nixlBackendInitParams, enableTelemetry_);
  SIZE(Backend, nixlBackendEngine);
  MEMBER(Backend, type_, nixlBackendEngine, backendType);
  MEMBER(Backend, parameters_, nixlBackendEngine, customParams);
  MEMBER(Backend, events_, nixlBackendEngine, telemetryEvents_);
  MEMBER(Backend, events_lock_, nixlBackendEngine, telemetryEventsMutex_);
  MEMBER(Backend, init_failed_, nixlBackendEngine, initErr);
  MEMBER(Backend, agent_, nixlBackendEngine, localAgent);
  MEMBER(Backend, telemetry_, nixlBackendEngine, enableTelemetry_);
  SIZE(Plugin, nixlBackendPlugin);
  MEMBER(Plugin, api_version, nixlBackendPlugin, api_version);
  MEMBER(Plugin, create, nixlBackendPlugin, create_engine);
  MEMBER(Plugin, destroy, nixlBackendPlugin, destroy_engine);
  MEMBER(Plugin, name, nixlBackendPlugin, get_plugin_name);
  MEMBER(Plugin, version, nixlBackendPlugin, get_plugin_version);
  MEMBER(Plugin, options, nixlBackendPlugin, get_backend_options);
  MEMBER(Plugin, memories, nixlBackendPlugin, get_backend_mems);
}

using RemoteView = nixl_status_t (nixlBackendEngine::*)(const nixl_remote_meta_dlist_t &,
                                                        nixlMemViewH &,
                                                        const nixl_opt_b_args_t *) const;
using LocalView = nixl_status_t (nixlBackendEngine::*)(const nixl_meta_dlist_t &, nixlMemViewH &,
                                                       const nixl_opt_b_args_t *) const;

static void compare_calls() {
  CALL(supports_remote, supportsRemote);
  CALL(supports_local, supportsLocal);
  CALL(supports_notifications, supportsNotif);
  CALL(supported_memories, getSupportedMems);
  CALL(register_memory, registerMem);
  CALL(deregister_memory, deregisterMem);
  CALL(connect, connect);
  CALL(disconnect, disconnect);
  CALL(unload_metadata, unloadMD);
  CALL(prepare, prepXfer);
  CALL(post, postXfer);
  CALL(check, checkXfer);
  CALL(release, releaseReqH);
  same_call("prepare_remote_view", call_of(&ours::Backend::prepare_remote_view),
            call_of(static_cast<RemoteView>(&nixlBackendEngine::prepMemView)));
  same_call("prepare_local_view", call_of(&ours::Backend::prepare_local_view),
            call_of(static_cast<LocalView>(&nixlBackendEngine::prepMemView)));
  CALL(release_view, releaseMemView);
  CALL(public_data, getPublicData);
  CALL(connection_info, getConnInfo);
  CALL(load_connection_info, loadRemoteConnInfo);
  CALL(load_remote_metadata, loadRemoteMD);
  CALL(load_local_metadata, loadLocalMD);
  CALL(notifications, getNotifs);
  CALL(notify, genNotif);
  CALL(query_memory, queryMem);
  CALL(estimate, estimateXferCost);
}

int main() {
  compare_values();
  compare_layouts();
  compare_calls();
  return failures != 0;
}
