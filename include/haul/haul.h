/* SPDX-License-Identifier: MIT
 * haul moves bytes between memories and reports the path that they took.
 *
 * Objects: a node is this process's endpoint; a region is a range of bytes at a place; a peer is
 * another node that this one is connected to; a remote is a region that a peer publishes (a remote
 * region); a transfer moves bytes between a region and a remote.
 *
 * Unless the comment of a call says otherwise:
 *  - a call returns 0 or a negative HAUL_E… code, and haul_error_last() has the detail;
 *  - HAUL_EINVAL is an argument that is NULL or out of bounds, HAUL_ENOMEM a lack of memory; a
 *    comment lists what else a call fails with;
 *  - any thread may use any handle, but none may release a handle while another thread is in a call
 *    with it;
 *  - the caller owns the handles that it receives, and releases each with the call that the comment
 *    names; releasing NULL does nothing;
 *  - a call blocks only if it takes a haul_deadline, and never past it;
 *  - lengths and offsets are bytes, times are nanoseconds;
 *  - names have printable ASCII bytes without blanks, as they end up on terminals, in logs and in
 *    addresses; the comment gives their length, and other names fail with HAUL_EINVAL;
 *  - a call that fills an array takes its room in *count and returns the number of entries that
 *    exist there, which may exceed the room; with *count 0 the array may be NULL;
 *  - in a child of fork(2), once the parent has opened a node, every call that can fail returns
 *    HAUL_EFORK; releases and haul_node_close work.
 *
 * Every declaration exists since version 0.1.0. */
#ifndef HAUL_HAUL_H
#define HAUL_HAUL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HAUL_VERSION_MAJOR 0
#define HAUL_VERSION_MINOR 1
#define HAUL_VERSION_PATCH 0

#if defined(__GNUC__)
#define HAUL_API __attribute__((visibility("default")))
#else
#define HAUL_API
#endif

typedef struct haul_node haul_node;
typedef struct haul_region haul_region;
typedef struct haul_peer haul_peer;
typedef struct haul_remote haul_remote;
typedef struct haul_transfer haul_transfer;

/* The version of the loaded library: "0.1.0". */
HAUL_API const char *haul_version(void);

/* ---- Errors ------------------------------------------------------------------------------- */

/* X(symbol, value, name, text). Values are stable and never reused. */
#define HAUL_ERROR_LIST(X)                                                                         \
  X(HAUL_EINVAL, -1, "invalid", "an argument is invalid")                                          \
  X(HAUL_ENOMEM, -2, "no-memory", "out of memory")                                                 \
  X(HAUL_ENOTSUP, -3, "not-supported", "the operation is not supported")                           \
  X(HAUL_ETIMEDOUT, -4, "timed-out", "the deadline passed")                                        \
  X(HAUL_ECANCELED, -5, "canceled", "the operation was canceled")                                  \
  X(HAUL_EPEER, -6, "peer-gone", "the connection to the peer ended")                               \
  X(HAUL_ENAME, -7, "no-such-name", "the name does not exist")                                     \
  X(HAUL_EEXIST, -8, "exists", "the name is already in use")                                       \
  X(HAUL_ERANGE, -9, "out-of-range", "the range is out of bounds")                                 \
  X(HAUL_EACCESS, -10, "access", "access is denied")                                               \
  X(HAUL_ESTALE, -11, "stale", "the owner released the memory or withdrew its name")               \
  X(HAUL_EPROTO, -12, "protocol", "the peer violated the protocol")                                \
  X(HAUL_EVERSION, -13, "version", "no common protocol version")                                   \
  X(HAUL_EADDRESS, -14, "address", "the address is invalid or unavailable")                        \
  X(HAUL_EADDRINUSE, -15, "address-in-use", "the address is already in use")                       \
  X(HAUL_ECONNECT, -16, "connect", "the connection failed")                                        \
  X(HAUL_EINSECURE, -17, "insecure", "refused as insecure")                                        \
  X(HAUL_ENOPATH, -18, "no-path", "no path meets the constraints")                                 \
  X(HAUL_ECHECKSUM, -19, "checksum", "the checksum does not match")                                \
  X(HAUL_EBUSY, -20, "busy", "the object is in use")                                               \
  X(HAUL_ELIMIT, -21, "limit", "a limit is reached")                                               \
  X(HAUL_EFORK, -22, "forked", "the handle belongs to the parent process")                         \
  X(HAUL_ECLOSED, -23, "closed", "the node is closed")                                             \
  X(HAUL_ESYSTEM, -24, "system", "a system call failed")                                           \
  X(HAUL_ETICKET, -25, "ticket", "the ticket is damaged, forged or for other memory")              \
  X(HAUL_EPLACE, -26, "place", "the place does not exist")                                         \
  X(HAUL_EPATH, -27, "path", "the path broke")                                                     \
  X(HAUL_EAUTH, -28, "not-authenticated", "authentication failed")

enum haul_code {
  HAUL_OK = 0,
#define HAUL_ERROR_ENUM(symbol, value, name, text) symbol = value,
  HAUL_ERROR_LIST(HAUL_ERROR_ENUM)
#undef HAUL_ERROR_ENUM
};

/* The detail of a failure. The arrays are always terminated; `object` may be empty. */
struct haul_error {
  int code;         /* HAUL_E… */
  int system;       /* errno of the failed system call, or 0 */
  char call[40];    /* the public call that failed */
  char object[128]; /* what it failed on: a name, an address, a range */
  char text[192];   /* what failed and why */
  char hint[256];   /* what to do about it */
};

/* The last failure of the calling thread, zero before the first. The thread's next failure
 * overwrites it; a call that succeeds leaves it alone. */
HAUL_API const struct haul_error *haul_error_last(void);

/* For libraries above haul: makes *error, whose code is negative, the last failure of the calling
 * thread, and returns its code. */
HAUL_API int haul_error_set(const struct haul_error *error);

/* The name ("timed-out") and the text of a code; "unknown" and "unknown code" for other numbers. */
HAUL_API const char *haul_error_name(int code);
HAUL_API const char *haul_error_text(int code);

/* ---- Time --------------------------------------------------------------------------------- */

/* A point in time of CLOCK_MONOTONIC, in nanoseconds. A call whose deadline has passed fails with
 * HAUL_ETIMEDOUT at once, before it sends or moves anything, whatever the path. The exceptions are
 * calls that may find what they wait for: haul_transfer_wait, _wait_all and _wait_any,
 * haul_message_send (room), haul_message_receive, haul_node_progress, haul_directory_next and
 * haul_world_peer. They look once, without waiting. */
typedef int64_t haul_deadline;

#define HAUL_NO_WAIT ((haul_deadline)0)
#define HAUL_FOREVER INT64_MAX

#define HAUL_MICROSECOND INT64_C(1000)
#define HAUL_MILLISECOND INT64_C(1000000)
#define HAUL_SECOND      INT64_C(1000000000)

/* The deadline `nanoseconds` from now, at most HAUL_FOREVER. */
HAUL_API haul_deadline haul_deadline_in(int64_t nanoseconds);

/* ---- Places ------------------------------------------------------------------------------- */

enum haul_kind {
  HAUL_HOST = 1,   /* host memory */
  HAUL_SIM = 2,    /* emulated accelerator: device memory that the CPU cannot access */
  HAUL_CUDA = 3,   /* NVIDIA GPU, by its number in this process (CUDA driver API) */
  HAUL_GAUDI = 4,  /* Intel Gaudi2 */
  HAUL_DPDK = 5,   /* host memory of DPDK, by NUMA node */
  HAUL_GPUDEV = 6, /* GPU with a DPDK driver (librte_gpudev) */
  HAUL_P2P = 7     /* memory that a PCI device publishes for peer-to-peer DMA */
};

/* Where bytes are: a kind of memory, and the device of that kind, counted from 0. */
struct haul_place {
  uint16_t kind; /* enum haul_kind */
  uint16_t device;
};

/* Parses "host", "sim:0", "cuda:1"; the device need not exist. HAUL_EPLACE: unknown kind. */
HAUL_API int haul_place_parse(const char *text, struct haul_place *place);

/* Returns `text` with the place, truncated to `size` bytes; 16 hold every known kind. */
HAUL_API const char *haul_place_format(struct haul_place place, char *text, size_t size);

/* ---- Node --------------------------------------------------------------------------------- */

enum haul_progress {
  HAUL_PROGRESS_THREAD = 0, /* a thread of the node makes progress */
  HAUL_PROGRESS_CALLER = 1  /* only haul_node_progress and calls that wait make progress */
};

#define HAUL_SPIN_ALWAYS INT64_MAX

/* Start from HAUL_NODE_CONFIG_INIT. A field that is 0 gets its value as haul_node_open describes;
 * the comments give the defaults. */
struct haul_node_config {
  size_t size;      /* sizeof(struct haul_node_config), set by the initializer */
  const char *name; /* for peers: 1 to 63 printable ASCII bytes, no blanks; default: HOST:PID */
  int progress;     /* enum haul_progress */
  int insecure;     /* 1: listen beyond loopback even without a key */
  int64_t spin_ns;  /* poll this long before sleeping; default 0; HAUL_SPIN_ALWAYS: never sleep */
  int64_t liveness_ns;    /* drop a peer that is silent this long; default 5 s, at least 10 ms */
  int64_t transfer_ns;    /* deadline of transfers that set none; default 60 s */
  unsigned tcp_rails;     /* rails, data connections to a tcp peer, if this side connects: at most
                             16; default 2 */
  unsigned copy_threads;  /* helpers for large copies between host memories, at most 16; default 1
                             if there are several processors; UINT_MAX: none */
  int peer_events;        /* 1: queue HAUL_PEER_JOINED and HAUL_PEER_LEFT with the messages */
  size_t message_window;  /* unread message bytes kept per peer: 1.34 MiB (default) to 1 GiB */
  size_t pool_bytes;      /* pool of freed regions; default 256 MiB; SIZE_MAX: none */
  unsigned max_peers;     /* refuse connections beyond this many peers; default 1024 */
  unsigned max_regions;   /* published names at a time; default 65536, at most 1,048,576 */
  unsigned max_transfers; /* transfers in flight to one peer; default 16384 */
  size_t tcp_rate;      /* bytes per second and rail, at least 1 MiB; default SIZE_MAX: no limit */
  size_t staging_bytes; /* limit of pinned bounce buffers; default 64 MiB, at least 8 MiB */
  const char *paths;    /* "tcp", or by size "tcp:64K,rdma"; default "auto", the fastest path */
  int estimates_only;   /* 1: choose paths by estimates, without feedback from measured costs */
  size_t tcp_zero_copy; /* tcp writes from this size on pass pages by reference, if haul allocated
                           the memory; at least 4096; default 64 KiB, where that gets cheaper than
                           copying; SIZE_MAX: never */
  const char *key;      /* key file (haul_key_new): tcp connections authenticate with its first
                           key, accept all of its keys, and use TLS 1.3; default none */
  /* PEM files for the same purpose: this node's certificate chain and its private key, and the
   * trusted authorities; all three or none. */
  const char *certificate, *private_key, *authority;
  int plain_data;          /* 1: no encryption of tcp data (control is) where both sides set it */
  int process_tls;         /* 1: encrypt in the process even where the kernel could */
  int any_user;            /* 1: Unix sockets accept any user, not only this one and root, and
                              this node connects to abstract names of any user */
  int any_observer;        /* 1: every peer may read statistics (stats.h), despite a key */
  int64_t handshake_ns;    /* time for an incoming connection to authenticate; default 5 s */
  unsigned max_peers_each; /* peers of one identity from one address; default: max_peers */
  unsigned max_lookups;    /* regions known to one peer, at most 1,048,576; default UINT_MAX: all */
  size_t peer_bytes; /* bytes in flight over tcp from a peer: 1 to 128 MiB (default), whole MiB */
  const char *directory_login; /* file with the login for etcd (haul.conf(5)); default none */
  int64_t idle_rails_ns;       /* close rails of a tcp peer that are unused this long, if this side
                                  connected; they are opened again on use; at least 1 ms; default 60 s;
                                  INT64_MAX: never */
  size_t warm_bytes; /* of the pool, filled when the node opens: shareable host memory in objects of
                        1 MiB whose pages are there; default 0; takes about 0.5 ms a MiB */
};

#define HAUL_NODE_CONFIG_INIT                                                                      \
  {                                                                                                \
    sizeof(struct haul_node_config), NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0,   \
        0, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0                              \
  }

/* Opens a node. `config` may be NULL; its strings are copied. A field that is 0 is read from the
 * environment (HAUL_POOL for pool_bytes), else from the file in HAUL_CONF or /etc/haul/haul.conf
 * (haul.conf(5)), else it has its default; `progress` and `peer_events` are set here only. Release
 * with haul_node_close. HAUL_EINVAL (the object is the field, the variable, FILE:LINE, or a key
 * file that is unusable), HAUL_ELIMIT (descriptors, threads, over 4096 keys), HAUL_EINSECURE (a
 * file of secrets that others can read), HAUL_ENOTSUP (a key or certificate without OpenSSL). */
HAUL_API int haul_node_open(const struct haul_node_config *config, haul_node **node);

/* A setting and its value, as haul_node_open reads it. */
struct haul_setting {
  char name[32];    /* as in the file: "pool" */
  char value[96];   /* as in the file: "256M" */
  char origin[280]; /* "default", "call", the variable, or "/etc/haul/haul.conf:12" */
};

/* Lists the settings of a node with this configuration, or NULL. Fails like haul_node_open. */
HAUL_API int haul_setting_list(const struct haul_node_config *config, struct haul_setting *settings,
                               size_t *count);

/* Closes the node: transfers in flight end with HAUL_ECLOSED, peers see it leave, calls that wait
 * return HAUL_ECLOSED, and `node` is invalid. Its peers, remotes, regions and transfers must still
 * be released, in any order, and calls with them stay safe: those that would reach a peer, or
 * publish, fail with HAUL_ECLOSED; regions remain accessible memory; transfers report their end.
 * Blocks until the node's threads have ended, and peers of this host have ended their copies on
 * wrapped memory: microseconds, at most liveness_ns; up to 2 s more for a node in a directory where
 * etcd does not respond. After copies with GPUs NVIDIA's driver unpins the node's buffers, which
 * waits for all that runs on the GPUs. Within `done` of a transfer it does nothing (HAUL_EBUSY in
 * haul_error_last()). In a forked child it closes the inherited descriptors and leaves the parent's
 * node and its peers alone. */
HAUL_API void haul_node_close(haul_node *node);

/* Listens on "tcp://address:port" (port 0: any free port; IPv6 in brackets), "unix:///path" or
 * "unix://@name" (abstract), or on the listening socket "fd://3" that the process inherited. May be
 * called several times. Blocks for the resolver, at most 10 s, then HAUL_ETIMEDOUT. HAUL_EADDRESS,
 * HAUL_EADDRINUSE, HAUL_ELIMIT, HAUL_ECLOSED; HAUL_EINSECURE: the address is reachable beyond
 * loopback, and the node has neither a key nor `insecure`. */
HAUL_API int haul_node_listen(haul_node *node, const char *address);

/* Writes the address of listener `index`, counted in the order of the calls, with the actual port.
 * HAUL_ERANGE: no such listener. HAUL_EINVAL: it does not fit; 160 bytes hold every address. */
HAUL_API int haul_node_address(haul_node *node, size_t index, char *text, size_t size);

/* Returns a descriptor that is readable when there is work: then call haul_node_progress with
 * HAUL_NO_WAIT, test transfers and receive messages. The node owns it. */
HAUL_API int haul_node_fd(haul_node *node);

/* Makes progress until something happened or `until` passes; with a progress thread, waits for an
 * event from it. Returns the number of events handled, 0 at the deadline. HAUL_ECLOSED. */
HAUL_API int haul_node_progress(haul_node *node, haul_deadline until);

/* ---- Regions ------------------------------------------------------------------------------ */

/* No descriptor: it cannot be exported, and peers of this host use cross-memory attach. */
#define HAUL_REGION_PRIVATE 1u

/* Host memory that GPUs copy directly: the driver pins its pages until the release, some 0.1 ms per
 * MiB, at once if the node has GPU memory, else at the first such copy; that copy fails where it
 * cannot. Pinning and unpinning may wait for all that runs on the GPU, so allocate before a kernel
 * that waits for transfers starts. Other host memory that the driver has not pinned is copied by
 * the CPU through bounce buffers, as reports show. Never pooled. */
#define HAUL_REGION_PINNED 2u

#define HAUL_READ  1u /* peers may read */
#define HAUL_WRITE 2u /* peers may write */
#define HAUL_LEND  4u /* only for haul_region_export */

/* Allocates `length` bytes at `place`, page-aligned, with undefined contents; the system provides
 * host pages at their first access. `flags` are HAUL_REGION_…. Freed regions are kept in a pool, in
 * sizes of 64 KiB, 1 MiB (over 256 KiB) and multiples of 2 MiB up to 256 MiB; other lengths are
 * exact. At HAUL_DPDK it may block for dpdk_wait (haul.conf(5)). Release with haul_region_release.
 * HAUL_EINVAL (also HAUL_REGION_PINNED for a device), HAUL_EPLACE, HAUL_ELIMIT (descriptors: see
 * HAUL_REGION_PRIVATE). */
HAUL_API int haul_region_alloc(haul_node *node, struct haul_place place, size_t length,
                               unsigned flags, haul_region **region);

/* Makes a region of memory that the caller owns and keeps until haul_region_release has returned.
 * Finds out whether it is memory of a GPU, of a Gaudi, of DPDK or of the host.
 *
 * GPU memory, also of haul_region_alloc, is accessed outside of the caller's streams. Complete all
 * work on its bytes before a transfer or copy starts, or a peer is notified of them: synchronise
 * the stream or its event, or name the event in the options (`after`). Calls without a stream may
 * return early, too: cudaMemcpy from pageable memory or within a GPU, and cudaMemset (CUDA driver
 * API, "API synchronization behavior"). Memory of cudaMalloc and cudaMallocAsync gets
 * CU_POINTER_ATTRIBUTE_SYNC_MEMOPS for good, so that these complete before they return; that of the
 * virtual-memory calls, as of haul_region_alloc, refuses it. HAUL_EINVAL: the range is empty, wraps
 * around, is not mapped, or lies only partly in a device's memory. */
HAUL_API int haul_region_wrap(haul_node *node, void *address, size_t length, haul_region **region);

/* Makes a read-only region of a range of a regular file. Its bytes are sent from the page cache
 * without a copy (tcp passes the pages by reference), as they are when they are read. The caller
 * keeps `descriptor`, which must be open for reading, and may close it after the call. Reading a
 * byte that the file has lost (truncation, disk error) raises SIGBUS, in threads of haul too, as
 * with any mapping. A peer that was sent pages by reference sees later writes to the file until it
 * has read them, even after a canceled transfer. Blocks as fstat(2) and mmap(2) do.
 * HAUL_EINVAL (not a regular file, or not readable), HAUL_ERANGE (the file is shorter),
 * HAUL_ENOTSUP (a file system without mmap, or hugetlbfs), HAUL_ESYSTEM. */
HAUL_API int haul_region_wrap_file(haul_node *node, int descriptor, uint64_t offset, size_t length,
                                   haul_region **region);

/* The address, in terms of its place: the CPU may access that of HAUL_HOST and HAUL_DPDK only. */
HAUL_API void *haul_region_address(const haul_region *region);
HAUL_API size_t haul_region_length(const haul_region *region);
HAUL_API struct haul_place haul_region_place(const haul_region *region);
/* What this process may do: HAUL_READ, and HAUL_WRITE unless it is mapped or shared read-only. */
HAUL_API unsigned haul_region_rights(const haul_region *region);

/* Copies between two regions of this node, whatever their places; the bytes are in place on return.
 * Blocks until `until`. HAUL_EINVAL (the ranges overlap), HAUL_ERANGE, HAUL_EACCESS (read-only
 * destination), HAUL_ESTALE, HAUL_ENOTSUP (no engine), HAUL_ETIMEDOUT (undefined destination). */
HAUL_API int haul_region_copy(haul_region *to, uint64_t to_offset, haul_region *from,
                              uint64_t from_offset, size_t length, haul_deadline until);

/* Registers the region with DPDK as external memory (rte_extmem_register), for mempools and mbufs
 * of the application, until it is unregistered or released; before that, the application returns
 * what DPDK built in it. Starts EAL if the application has not. Registers system pages, to the end
 * of the last: wrapped memory must begin and end with one. Blocks for EAL's start and some
 * microseconds per MiB. HAUL_EINVAL (not whole pages, registered already, DPDK's own memory; of
 * unregister: not registered), HAUL_EACCESS (read-only), HAUL_ENOTSUP (a device's memory, no DPDK
 * (check "dpdk.library"), EAL fails to start), HAUL_ELIMIT (DPDK's room is full), HAUL_ESTALE. */
HAUL_API int haul_region_dpdk_register(haul_region *region);
HAUL_API int haul_region_dpdk_unregister(haul_region *region);

/* Ends the region: withdraws its names and cancels its transfers, this node's (HAUL_ECANCELED) and
 * peers'. Once it returns, no one accesses wrapped memory any more: within microseconds, at most
 * liveness_ns where a peer or a NIC must end a copy, after which a late peer is dropped. */
HAUL_API void haul_region_release(haul_region *region);

/* ---- Sharing with a process of this host -------------------------------------------------- */

#define HAUL_TENSOR_DIMENSIONS 8

/* The layout of a tensor in a region. `type` is DLPack's: kDLInt 0, kDLUInt 1, kDLFloat 2,
 * kDLBfloat 4 (dlpack.h 1.1, DLDataTypeCode). */
struct haul_tensor {
  uint8_t type, bits;
  uint16_t lanes;
  uint32_t dimensions;
  uint64_t offset; /* of the first element, from the start of the region */
  int64_t shape[HAUL_TENSOR_DIMENSIONS];
  int64_t strides[HAUL_TENSOR_DIMENSIONS]; /* in elements */
};

/* What another process needs besides the descriptor: plain bytes, sent as they are. It opens
 * nothing without its descriptor, except memory that its receiver has imported before; the
 * descriptor opens nothing but this region. */
struct haul_ticket {
  uint8_t bytes[256];
};

/* Makes a ticket and a descriptor, which the caller closes once it is sent. `rights` are those of
 * the importer: HAUL_READ, or HAUL_READ | HAUL_WRITE. `layout` may be NULL. With `descriptor` NULL
 * it makes a ticket only, without a system call, for a receiver that got the descriptor with an
 * earlier ticket of the same region and rights: many tensors of a region share one.
 *
 * With HAUL_READ | HAUL_WRITE | HAUL_LEND, wrapped GPU memory of cudaMalloc can be exported through
 * the driver's legacy IPC. Its ticket alone opens it in other processes of this host; *descriptor
 * becomes -1, and there is no room for a layout. Memory freed while it is imported elsewhere is
 * undefined there (CUDA driver API, cuIpcOpenMemHandle), and haul_region_release does not wait for
 * importers: the owner frees it only once it knows that all have released theirs.
 *
 * HAUL_EINVAL (rights, or a layout outside the region), HAUL_ESTALE, HAUL_ELIMIT (descriptors),
 * HAUL_ENOTSUP: private, wrapped or imported memory; HAUL_GAUDI (a device is open in one process at
 * a time), HAUL_DPDK, HAUL_GPUDEV; with HAUL_READ only, GPU memory, as the driver's descriptors
 * allow writing, and host memory without /proc; with HAUL_LEND, a layout or other memory. */
HAUL_API int haul_region_export(haul_region *region, unsigned rights,
                                const struct haul_tensor *layout, struct haul_ticket *ticket,
                                int *descriptor);

/* Maps a region of another process, at a cost that does not depend on its length. The caller keeps
 * the descriptor and may close it. The memory lives at least as long as the import; it cannot be
 * exported again. Once the owner releases it, transfers and copies fail with HAUL_ESTALE, except
 * for GPU memory, whose driver does not notify importers. An owner that ends without a release
 * leaves the memory as it was: to notice, keep a connection to its node, for HAUL_PEER_LEFT.
 * With `descriptor` -1 it imports again what this node imported with a descriptor and a ticket of
 * the same region and rights. Such imports share a mapping, which is kept for 5 s after the last
 * release, at most 64 of them, by a node with a pool. A ticket of HAUL_LEND needs no descriptor,
 * and is not kept.
 * HAUL_ETICKET (of -1: the descriptor is needed), HAUL_ESTALE, HAUL_EPLACE (a GPU not seen here),
 * HAUL_ELIMIT, HAUL_ENOTSUP. */
HAUL_API int haul_region_import(haul_node *node, const struct haul_ticket *ticket, int descriptor,
                                haul_region **region);

/* Reads the layout of a ticket. HAUL_ENAME: it has none. HAUL_ETICKET: it is damaged. */
HAUL_API int haul_ticket_layout(const struct haul_ticket *ticket, struct haul_tensor *layout);

/* ---- Publishing to peers ------------------------------------------------------------------ */

/* Lets peers look the region up under `name`, 1 to 255 printable ASCII bytes without blanks, and
 * use it within `rights`, HAUL_READ and HAUL_WRITE. A region can have several names. With
 * HAUL_WRITE only it is not mapped, as mapped memory can be read: rdma or tcp move the bytes, with
 * HAUL_CHECKSUM tcp only. An import is reached over tcp only, of a GPU's memory over rdma too.
 * HAUL_EINVAL, HAUL_EACCESS (HAUL_WRITE of read-only memory), HAUL_EEXIST, HAUL_ELIMIT
 * (max_regions), HAUL_ESTALE, HAUL_ECLOSED. */
HAUL_API int haul_region_publish(haul_region *region, const char *name, unsigned rights);

/* Withdraws the name: remotes that were looked up under it fail with HAUL_ESTALE from now on, even
 * if it is published again. Blocks until peers have ended their copies on the region: microseconds,
 * at most liveness_ns, after which a late peer is dropped. HAUL_ENAME, HAUL_ECLOSED. */
HAUL_API int haul_region_unpublish(haul_region *region, const char *name);

/* ---- Peers -------------------------------------------------------------------------------- */

/* Connects to an address that a node listens on, which may be this node, or to a name in a
 * directory (directory.h, with its errors), and opens the paths to it; a path that cannot be opened
 * is closed, with a reason. Blocks until the peer has responded. A node that its caller drives
 * makes progress meanwhile; another such node of the same thread does not, so that connecting to it
 * times out. If the other node has connected to this one before, over TCP and with the same
 * identities and encryption, both use that connection: the peer is then the one that joined.
 * Writes that this node abandoned (canceled, or timed out) over an earlier connection to that node
 * end first, or that connection is closed for both.
 * Release with haul_peer_close. HAUL_EADDRESS, HAUL_ECONNECT, HAUL_EVERSION, HAUL_EPROTO
 * (not a haul node), HAUL_EAUTH, HAUL_EPEER, HAUL_ELIMIT (descriptors, or max_peers there),
 * HAUL_ETIMEDOUT, HAUL_ECLOSED. */
HAUL_API int haul_peer_connect(haul_node *node, const char *address, haul_deadline until,
                               haul_peer **peer);

/* Adds a reference, to be released with haul_peer_close, and returns `peer`. */
HAUL_API haul_peer *haul_peer_retain(haul_peer *peer);

/* Drops a reference. The connection ends with the last of the side that connected, its remotes and
 * messages included; one that both sides use, with the last of both. */
HAUL_API void haul_peer_close(haul_peer *peer);

/* The name that the peer gave itself, unverified; valid as long as the reference. */
HAUL_API const char *haul_peer_name(const haul_peer *peer);

/* 0 while the peer is connected, then the code with which the connection ended: HAUL_EPEER,
 * HAUL_EPROTO, or HAUL_ECLOSED where this side closed it; the detail has the reason. */
HAUL_API int haul_peer_status(haul_peer *peer);

/* Finds a published region. Blocks for the response and for registration: where rdma is open, the
 * owner pins the whole region, at some gigabytes per second, until the last remote to it is
 * released or the peer leaves; this counts against its RLIMIT_MEMLOCK. If that fails, or not
 * by `until`, rdma is closed for the remote, with the reason. Release with haul_remote_release.
 * HAUL_ENAME, HAUL_ELIMIT (max_lookups there), HAUL_ETIMEDOUT, or as haul_peer_status. */
HAUL_API int haul_peer_lookup(haul_peer *peer, const char *name, haul_deadline until,
                              haul_remote **remote);

struct haul_published {
  uint64_t length;
  struct haul_place place;
  unsigned rights; /* HAUL_READ, HAUL_WRITE: of this node */
  char name[256];
};

/* Lists what the peer publishes to this node, by name. HAUL_ETIMEDOUT, or as haul_peer_status. */
HAUL_API int haul_peer_list(haul_peer *peer, haul_deadline until, struct haul_published *entries,
                            size_t *count);

/* What the lookup found. */
HAUL_API uint64_t haul_remote_length(const haul_remote *remote);
HAUL_API struct haul_place haul_remote_place(const haul_remote *remote);
HAUL_API unsigned haul_remote_rights(const haul_remote *remote);
HAUL_API void haul_remote_release(haul_remote *remote);

/* ---- Transfers ---------------------------------------------------------------------------- */

enum haul_operation {
  HAUL_OP_WRITE = 1,
  HAUL_OP_READ = 2,
  HAUL_OP_FETCH_ADD = 3,
  HAUL_OP_COMPARE_SWAP = 4
};

/* A segment: `length` bytes at offset `local` of the region and offset `remote` of the remote.
 * Segments of one transfer must not overlap at the destination. */
struct haul_piece {
  uint64_t local, remote, length;
};

#define HAUL_PIECES_MAX 262144 /* segments per transfer */

#define HAUL_REQUIRE_ZERO_COPY 1u /* one movement from source to destination, no buffer between */
#define HAUL_CHECKSUM          2u /* XXH3 of each slice, verified at the destination */
/* More transfers follow at once, so this one may be batched with them: until 16 slices or 64 KiB
 * (tcp: 32 slices or 512 KiB) are batched for the peer, a transfer comes without this flag, or 20
 * us have passed. While 8 requests over tcp are unanswered, reads, and writes up to 128 KiB, are
 * batched without this flag, too, unless their priority is HAUL_PRIORITY_HIGH. */
#define HAUL_MORE     4u
#define HAUL_CPU_TIME 8u /* measure cpu_ns of the report, which takes about a microsecond */

/* Order among transfers that wait for a path. One that was passed over 16 times goes next. */
enum haul_priority {
  HAUL_PRIORITY_LOW = -1,
  HAUL_PRIORITY_NORMAL = 0,
  HAUL_PRIORITY_HIGH = 1 /* for small transfers, which have a connection of their own over tcp */
};

/* A message that follows a transfer. */
struct haul_notification {
  uint64_t tag;
  const void *bytes; /* NULL if `length` is 0 */
  size_t length;     /* at most HAUL_MESSAGE_MAX */
};

struct haul_transfer_options {
  size_t size; /* sizeof(struct haul_transfer_options), set by the initializer */
  unsigned flags;
  const char *only;       /* use only this path: "map", "rdma", "tcp"; NULL: the best one */
  haul_deadline deadline; /* HAUL_ETIMEDOUT after it; 0, as HAUL_NO_WAIT: transfer_ns of the node,
                             from the call */
  int priority;           /* enum haul_priority */
  /* Called once when the transfer has ended, so that haul_transfer_test has its result: by the
   * thread that drives the node, one call at a time, at the latest within haul_node_close. Requires
   * a handle, and may release it. May call anything, including calls that wait, during which the
   * node makes progress and calls of `done` are deferred; haul_node_close only sets HAUL_EBUSY. */
  void (*done)(void *user, haul_transfer *transfer);
  void *user;
  /* NULL, or an event (CUevent, cudaEvent_t) of the GPU `after_at`, or of the region's GPU if that
   * has kind 0. The local memory is accessed once the event has completed; until the end it is
   * neither recorded again nor destroyed. HAUL_ENOTSUP: the place has no events. To have a stream
   * wait for the end, let `done` store into pinned memory that cuStreamWaitValue32 waits for. */
  void *after;
  struct haul_place after_at;
  /* NULL, or a message for the peer, copied by the call. The peer receives it, as if by
   * haul_message_send, when all bytes are at their destination. If the transfer fails or is
   * canceled, the peer receives none. The transfer is in flight until the message is sent, which
   * waits for room at the receiver. Notifications of several transfers arrive in any order. */
  const struct haul_notification *notify;
};

#define HAUL_TRANSFER_OPTIONS_INIT                                                                 \
  {                                                                                                \
    sizeof(struct haul_transfer_options), 0, NULL, 0, HAUL_PRIORITY_NORMAL, NULL, NULL, NULL,      \
        {0, 0}, NULL                                                                               \
  }

/* Starts to move `count` segments between a region and a remote of one node; none unless all are
 * valid. `options` may be NULL; options and segments are copied. With `transfer` NULL it waits for
 * the end, until the transfer's deadline, and returns the result. Else *transfer is a handle, to be
 * released with haul_transfer_release; small transfers over map have ended on return. Until the
 * end, the local bytes must not change (write) or are undefined (read). The bytes of a completed
 * transfer are visible at the destination; one that failed or was canceled leaves it undefined.
 * HAUL_EINVAL (no segments, an empty one, unknown options, `done` without a handle), HAUL_ERANGE,
 * HAUL_EACCESS, HAUL_ENOPATH (the hint has each path's reason; when all are closed, the peer ends),
 * HAUL_EPEER, HAUL_ESTALE, HAUL_ECLOSED, HAUL_ELIMIT (over HAUL_PIECES_MAX segments or 2^64 bytes;
 * max_transfers in flight to the peer, or no bounce buffer); at the end HAUL_ETIMEDOUT,
 * HAUL_ECANCELED, HAUL_ECHECKSUM. */
HAUL_API int haul_write(haul_remote *to, haul_region *from, const struct haul_piece *pieces,
                        size_t count, const struct haul_transfer_options *options,
                        haul_transfer **transfer);
HAUL_API int haul_read(haul_region *to, haul_remote *from, const struct haul_piece *pieces,
                       size_t count, const struct haul_transfer_options *options,
                       haul_transfer **transfer);

/* Starts an atomic operation on the 8 bytes at `offset` of the remote, an integer in the byte order
 * of the processors: haul_fetch_add adds `value`, modulo 2^64; haul_compare_swap stores `desired`
 * if it is `expected`. The old value is stored in the 8 bytes at `result_offset` of `result`; the
 * swap took place if that is `expected`. Both offsets, and the address at the owner, are multiples
 * of 8. The first value is set before others use it: by the owner, or by one haul_write.
 *
 * The operation is atomic with respect to all others on these bytes, of any peer over any path, and
 * to 8-byte C11 atomics of the owner's processors; not to haul_write and haul_read. The exception
 * is opt-in: many NICs are atomic only among their own operations (IBV_ATOMIC_HCA), and such a NIC
 * is used only with `only` = "rdma"; then all who change these bytes must use that NIC.
 *
 * `options`, `transfer`, deadline, cancel and report are as for haul_read of one 8-byte segment,
 * but HAUL_CHECKSUM is refused, and HAUL_REQUIRE_ZERO_COPY allows map and rdma. The remote needs
 * HAUL_READ and HAUL_WRITE, and memory that the owner's processors access.
 *
 * It takes place at most once, as it is never repeated on another path. If it ends with HAUL_EPATH
 * (the path broke), HAUL_EPEER, HAUL_ETIMEDOUT, HAUL_ECANCELED, HAUL_ECLOSED or HAUL_ESTALE, it may
 * or may not have taken place, and `result` is undefined. Further errors as of haul_read, with
 * HAUL_EINVAL for misalignment and HAUL_CHECKSUM, HAUL_ENOPATH where no path can do it. */
HAUL_API int haul_fetch_add(haul_region *result, uint64_t result_offset, haul_remote *remote,
                            uint64_t offset, uint64_t value,
                            const struct haul_transfer_options *options, haul_transfer **transfer);
HAUL_API int haul_compare_swap(haul_region *result, uint64_t result_offset, haul_remote *remote,
                               uint64_t offset, uint64_t expected, uint64_t desired,
                               const struct haul_transfer_options *options,
                               haul_transfer **transfer);

/* 1 while the transfer is in flight, 0 when it is complete, else the error it ended with. Does not
 * block. A caller that calls it without a pause between makes progress itself, so that no thread
 * has to wake up for the end; with a progress thread, each 2 us. Such a call may copy up to 1 MiB
 * of transfers of 4 MiB and more between host memories. Most calls take some 30 ns. */
HAUL_API int haul_transfer_test(haul_transfer *transfer);

/* Waits for the end, and may help with large copies. Returns the result of haul_transfer_test, or
 * HAUL_ETIMEDOUT if `until` passes first, when haul_transfer_test still returns 1. */
HAUL_API int haul_transfer_wait(haul_transfer *transfer, haul_deadline until);

/* Wait for many transfers of one node, in one call. Entries that are NULL are skipped. _all waits
 * until all have ended, whatever their results, and returns 0 or the error of the first in the
 * array that has one. _any waits until at least one has ended, and returns the result of the first
 * in the array that has; set its entry to NULL before the next call. *index is the entry that the
 * result belongs to (_all without an error: `count`); `index` may be NULL. HAUL_ETIMEDOUT if
 * `until` passes first: *index is an entry for which haul_transfer_test still returns 1.
 * HAUL_EINVAL: transfers of several nodes, or (_any) no transfer. */
HAUL_API int haul_transfer_wait_all(haul_transfer *const *transfers, size_t count,
                                    haul_deadline until, size_t *index);
HAUL_API int haul_transfer_wait_any(haul_transfer *const *transfers, size_t count,
                                    haul_deadline until, size_t *index);

/* Requests an early end and returns; 0 even after the end. Local memory is in use until then. Over
 * tcp, the peer of a write that ended early may still read the present contents of pages that it
 * was sent by reference, of allocated memory, until the region is released. */
HAUL_API int haul_transfer_cancel(haul_transfer *transfer);

/* Releases the handle; a transfer in flight continues. */
HAUL_API void haul_transfer_release(haul_transfer *transfer);

#define HAUL_PATHS_MAX 8

/* A path and its cost: open, or closed (unavailable for this transfer) for a reason. */
struct haul_path {
  char name[16]; /* "map", "rdma", "tcp" */
  int open;
  int chosen;
  double cost_ns; /* open: time for this length, measured or estimated */
  unsigned copies_cpu, copies_kernel, copies_dma; /* copies of each byte, by agent */
  unsigned zero_copy;                             /* 1: satisfies HAUL_REQUIRE_ZERO_COPY */
  char detail[64];                                /* "mapped", "cross-memory attach", "2 rails" */
  char reason[192];   /* why it is closed, or open and not chosen; chosen: what set it, why some
                         rails of NICs carry it, how they are paired, and which refusal of a NIC
                         stages it, or "" */
  double estimate_ns; /* cost_ns before any measurement */
  int measured;       /* 1: cost_ns comes from transfers of about this size */
  char send[12];      /* how the bytes leave the requester's memory: "short" (within the call or the
                         request), "buffered" (copied first), "direct" (from where they are) */
};

struct haul_report {
  size_t size;                    /* sizeof(struct haul_report), set by the initializer */
  int status;                     /* as from haul_transfer_test */
  int operation;                  /* enum haul_operation */
  uint64_t bytes, pieces, slices; /* slices: of at most 1 MiB and 256 segments */
  unsigned retries;               /* slices sent again on another path */
  unsigned checksum;              /* 1: verified at the destination */
  int64_t queued_ns;              /* from the call to the first byte handed to the path */
  int64_t wire_ns;                /* from there to the end */
  size_t path_count;
  struct haul_path paths[HAUL_PATHS_MAX]; /* the chosen one first */
  struct haul_place from, to;
  char peer[64];
  char name[256];   /* of the remote */
  int64_t setup_ns; /* part of queued_ns: checks, choice of the path, registration */
  int64_t cpu_ns; /* with HAUL_CPU_TIME: CPU time of this process from the call to the end, all its
                     threads and all that they did besides; the peer's too if it is this process */
};

#define HAUL_REPORT_INIT                                                                           \
  {                                                                                                \
    sizeof(struct haul_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,                                      \
        {{{0}, 0, 0, 0, 0, 0, 0, 0, {0}, {0}, 0, 0, {0}}}, {0, 0}, {0, 0}, {0}, {0}, 0, 0          \
  }

/* Fills a report, from HAUL_REPORT_INIT, with the present state; final after the end. */
HAUL_API int haul_transfer_report(haul_transfer *transfer, struct haul_report *report);

/* Writes the report as lines of text, like snprintf(3); returns the length that it needs. */
HAUL_API int haul_report_format(const struct haul_report *report, char *text, size_t size);

/* Lists the paths of a transfer of one segment without moving a byte: the chosen one first, then
 * the open ones by cost, then the closed ones. Costs are those of memory that was accessed before.
 * Ranges are not checked. HAUL_EACCESS, HAUL_EINVAL (also an atomic operation not of 8 bytes). */
HAUL_API int haul_explain(haul_region *local, haul_remote *remote, enum haul_operation operation,
                          uint64_t length, const struct haul_transfer_options *options,
                          struct haul_path *paths, size_t *count);

/* ---- Messages ----------------------------------------------------------------------------- */

enum haul_message_kind {
  HAUL_MESSAGE = 1,
  HAUL_PEER_JOINED = 2,  /* with peer_events: the peer connected to this node, or uses a connection
                            that this node made */
  HAUL_PEER_LEFT = 3,    /* with peer_events: the connection to the peer ended */
  HAUL_MESSAGE_OFFER = 4 /* the payload is in a region of the peer: haul_message_read */
};

#define HAUL_MESSAGE_MAX 1048576 /* bytes per message */

/* Owned by the receiver until haul_message_release. */
struct haul_message {
  int kind;        /* enum haul_message_kind */
  haul_peer *peer; /* the sender; haul_peer_retain keeps it beyond the message */
  uint64_t tag;
  const void *bytes; /* NULL in an offer */
  size_t length;
  void *internal;
};

/* Sends a message. It arrives after every write and atomic operation to this peer that was started
 * before the call, and after earlier messages; if such a write failed, once none of it can arrive
 * any more, so wait for the write to learn that, or give the write a `notify`. Blocks for those
 * writes and for room at the receiver, and returns when the bytes are copied. They are still sent
 * after haul_peer_close, but not after haul_node_close: wait for a reply before that.
 * HAUL_ETIMEDOUT (nothing was sent), HAUL_ELIMIT (too long), or as haul_peer_status. */
HAUL_API int haul_message_send(haul_peer *peer, uint64_t tag, const void *bytes, size_t length,
                               haul_deadline until);

/* Receives the next message of any peer. HAUL_ETIMEDOUT: none by `until`. HAUL_ECLOSED. */
HAUL_API int haul_message_receive(haul_node *node, struct haul_message *message,
                                  haul_deadline until);
HAUL_API void haul_message_release(struct haul_message *message);

/* Sends a message whose payload is a part of a region, and returns when the receiver has copied the
 * bytes to a region of its own, with haul_message_read. They take the best path from one region to
 * the other, as in a transfer, and may be of any place and any length but 0. The message arrives
 * like one of haul_message_send, and takes 64 bytes of room at the receiver. Until the call returns
 * the bytes must not change, and the peer may read the whole region, which counts against
 * max_regions, but which no peer finds by a name. Afterwards no peer accesses it, whatever the
 * code.
 *
 * Blocks for earlier writes and for room, then for the receiver; after `until` only for copies that
 * peers have begun, at most liveness_ns. HAUL_ETIMEDOUT: the receiver may have the bytes, or get
 * HAUL_ESTALE. HAUL_ECANCELED: it released the message without reading it. HAUL_ENOTSUP: the peer's
 * version has no offers. HAUL_EINVAL, HAUL_ERANGE, HAUL_ELIMIT, or as haul_peer_status; and the
 * code with which the receiver failed to read, as the text says: HAUL_ERANGE if its region is too
 * short. */
HAUL_API int haul_message_offer(haul_peer *peer, uint64_t tag, haul_region *region, uint64_t offset,
                                uint64_t length, haul_deadline until);

/* Copies the `length` bytes of an offer to `offset` of a region of the same node, waits for the end
 * and notifies the sender of the result. Once a message, before its release, which else refuses the
 * offer. Blocks until the deadline of `options`. These are those of haul_read, or NULL, without
 * `done`. If `report` is not NULL, it is filled like that of a read that was started. HAUL_ERANGE:
 * the region is too short. HAUL_ESTALE (HAUL_ENOPATH with `only`): the sender has stopped waiting.
 * Else as haul_read. */
HAUL_API int haul_message_read(const struct haul_message *message, haul_region *to, uint64_t offset,
                               const struct haul_transfer_options *options,
                               struct haul_report *report);

/* ---- Devices, ports, checks, counters ----------------------------------------------------- */

struct haul_device {
  struct haul_place place;
  int emulated;     /* 1: software emulates the hardware */
  int numa;         /* NUMA node, -1 if unknown */
  uint64_t memory;  /* total bytes, 0 if unknown */
  char name[64];    /* "host memory", "emulated accelerator" */
  char pci[16];     /* "0000:17:00.0", or "" */
  char exports[64]; /* how other processes ("memfd", "descriptor") and NICs share its memory:
                       "memfd, dma-buf to NICs"; NICs only: "dma-buf to NICs alone" */
};

HAUL_API int haul_device_list(haul_node *node, struct haul_device *devices, size_t *count);

/* A NIC port that a path of this host uses, as seen from a place. */
struct haul_port {
  char path[16];            /* "rdma" */
  char name[48];            /* NIC and port number: "mlx5_0/1" */
  int usable;               /* 0: see `reason` */
  int emulated;             /* 1: software emulates the hardware */
  int numa;                 /* NUMA node, -1 if unknown */
  int bridges;              /* PCI bridges shared with the place's device */
  int numa_distance;        /* of the kernel: 10 within a node; -1 if unknown */
  uint64_t bits_per_second; /* line rate, 0 if unknown */
  char pci[16];             /* "0000:17:00.0", or "" */
  char interface[16];       /* network interface: "eth2", or "" */
  char address[48];         /* for peers: a GID "::ffff:10.0.0.2", or "lid 12" */
  char reason[128];
  /* Of its connections, as the settings rdma_… of haul.conf(5) have it; 0 if it is not usable. */
  unsigned mtu; /* bytes of payload a packet */
  unsigned gid_index, pkey, traffic_class, service_level;
  unsigned timeout, retry_count; /* of packets: 4.096 us times 2^timeout, as often */
  int chosen;                    /* 1: it carries the transfers of memory at the place */
  char choice[64]; /* why, or why not: "nearest by PCI", "mlx5_0/1 is nearest by PCI"; "" if it is
                      not usable */
};

/* Lists, for each path, the usable ports, best first for memory at `from`, then the others. Opens
 * the NICs on each call, which may block in their drivers. HAUL_EPLACE. */
HAUL_API int haul_port_list(haul_node *node, struct haul_place from, struct haul_port *ports,
                            size_t *count);

enum haul_check_state {
  HAUL_CHECK_OK = 0,
  HAUL_CHECK_LIMITED = 1, /* works, with less speed or function */
  HAUL_CHECK_MISSING = 2
};

/* A requirement of a path or a place. */
struct haul_check {
  int state;        /* enum haul_check_state */
  char backend[16]; /* "host", "sim", "cuda", "gaudi", "dpdk", "gpudev", "p2p", "map", "rdma",
                       "tcp" */
  char name[32];    /* unique: "map.cross-memory-attach" (haul_device(3)) */
  char text[192];   /* what was found */
  char remedy[192]; /* a command that fixes it, or "" */
};

HAUL_API int haul_check_list(haul_node *node, struct haul_check *checks, size_t *count);

/* Reads a counter of haul_counter(3): "pool.hits", "peer.NAME.map.writes". HAUL_ENAME.
 * haul_counter_list calls `each`, within the call, for every counter; `each` must not call haul. */
HAUL_API int haul_counter_read(haul_node *node, const char *name, uint64_t *value);
HAUL_API int haul_counter_list(haul_node *node,
                               void (*each)(void *user, const char *name, uint64_t value),
                               void *user);

#ifdef __cplusplus
}
#endif

#endif
