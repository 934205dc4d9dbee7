/* SPDX-License-Identifier: MIT
 *
 * haul moves bytes between memories and says which path they took.
 *
 * Five nouns: a node is this process's end, a region is a range of bytes at a place, a peer is
 * another node, a remote is a peer's published region, a transfer is bytes on their way.
 *
 * Conventions that hold for every call unless its comment says otherwise:
 *  - it returns 0 or a negative HAUL_E… code; haul_error_last() then has the detail;
 *  - any handle may be used from any thread;
 *  - a handle given to the caller is released by the caller, with the call its comment names;
 *    releasing NULL does nothing;
 *  - a call may block only if it takes a haul_deadline, and then not beyond it;
 *  - lengths and offsets are bytes, times are nanoseconds;
 *  - in a forked child every call but the releases and haul_node_close fails with HAUL_EFORK.
 *
 * Everything here is there since version 0.1.
 */
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

/* "0.1.0", the version of the library that is loaded. */
HAUL_API const char *haul_version(void);

/* ---- Errors ------------------------------------------------------------------------------- */

/* X(symbol, value, name, text). Values never change and are never used again. */
#define HAUL_ERROR_LIST(X)                                                                         \
  X(HAUL_EINVAL, -1, "invalid", "an argument is not valid")                                        \
  X(HAUL_ENOMEM, -2, "no-memory", "no memory left")                                                \
  X(HAUL_ENOTSUP, -3, "not-supported", "not supported here")                                       \
  X(HAUL_ETIMEDOUT, -4, "timed-out", "the deadline passed")                                        \
  X(HAUL_ECANCELED, -5, "canceled", "canceled by the caller")                                      \
  X(HAUL_EPEER, -6, "peer-gone", "the peer is gone")                                               \
  X(HAUL_ENAME, -7, "no-such-name", "no region is published under this name")                      \
  X(HAUL_EEXIST, -8, "exists", "the name is taken")                                                \
  X(HAUL_ERANGE, -9, "out-of-range", "offset and length do not lie within the region")             \
  X(HAUL_EACCESS, -10, "access", "the region's rights do not allow this")                          \
  X(HAUL_ESTALE, -11, "stale", "the memory was released by its owner")                             \
  X(HAUL_EPROTO, -12, "protocol", "the peer sent something that the protocol does not allow")      \
  X(HAUL_EVERSION, -13, "version", "no common protocol version")                                   \
  X(HAUL_EADDRESS, -14, "address", "the address cannot be understood or found")                    \
  X(HAUL_EADDRINUSE, -15, "address-in-use", "the address is in use")                               \
  X(HAUL_ECONNECT, -16, "connect", "the connection could not be made")                             \
  X(HAUL_EINSECURE, -17, "insecure", "refused for lack of protection")                             \
  X(HAUL_ENOPATH, -18, "no-path", "no path satisfies what was asked for")                          \
  X(HAUL_ECHECKSUM, -19, "checksum", "the bytes arrived damaged")                                  \
  X(HAUL_EBUSY, -20, "busy", "the object is in use")                                               \
  X(HAUL_ELIMIT, -21, "limit", "a limit is reached")                                               \
  X(HAUL_EFORK, -22, "forked", "the handle belongs to the parent process")                         \
  X(HAUL_ECLOSED, -23, "closed", "the node is closed")                                             \
  X(HAUL_ESYSTEM, -24, "system", "a system call failed")                                           \
  X(HAUL_ETICKET, -25, "ticket", "the ticket is damaged, forged or for something else")            \
  X(HAUL_EPLACE, -26, "place", "there is no such place")                                           \
  X(HAUL_EPATH, -27, "path", "the path broke")                                                     \
  X(HAUL_EAUTH, -28, "not-authenticated", "one side does not accept who the other is")

enum haul_code {
  HAUL_OK = 0,
#define HAUL_ERROR_ENUM(symbol, value, name, text) symbol = value,
  HAUL_ERROR_LIST(HAUL_ERROR_ENUM)
#undef HAUL_ERROR_ENUM
};

/* What went wrong, in the order in which a person asks. Strings are never NULL and may be empty. */
struct haul_error {
  int code;         /* HAUL_E… */
  int system;       /* errno of the system call behind it, or 0 */
  char call[40];    /* the public call that failed */
  char object[128]; /* what it was about: a name, an address, a range */
  char text[192];   /* one sentence: what happened */
  char hint[256];   /* one sentence: what to do about it */
};

/* The calling thread's last failure; it stays as it is until the thread's next failure. */
HAUL_API const struct haul_error *haul_error_last(void);

/* Short name ("timed-out") and text of a code; "unknown" for a number that is not one. */
HAUL_API const char *haul_error_name(int code);
HAUL_API const char *haul_error_text(int code);

/* ---- Time --------------------------------------------------------------------------------- */

/* A point in time, in nanoseconds of CLOCK_MONOTONIC. One that has passed means "do not wait". */
typedef int64_t haul_deadline;

#define HAUL_NO_WAIT ((haul_deadline)0)
#define HAUL_FOREVER INT64_MAX

/* The point `nanoseconds` from now; saturates at HAUL_FOREVER. */
HAUL_API haul_deadline haul_deadline_in(int64_t nanoseconds);

/* ---- Places ------------------------------------------------------------------------------- */

enum haul_kind {
  HAUL_HOST = 1,  /* host memory */
  HAUL_SIM = 2,   /* emulated accelerator: device memory that the CPU cannot touch */
  HAUL_CUDA = 3,  /* memory of an NVIDIA GPU, under the driver's number of it in this process */
  HAUL_GAUDI = 4, /* Intel Gaudi2 */
  HAUL_DPDK = 5,  /* host memory from DPDK, under the number of its NUMA node */
  HAUL_GPUDEV = 6 /* a GPU whose driver is DPDK's (librte_gpudev) */
};

/* Where bytes live: a kind of memory and the device's number, counted from 0 within the kind. */
struct haul_place {
  uint16_t kind;
  uint16_t device;
};

/* "host", "sim:0", "cuda:1". HAUL_EPLACE for anything that names no known kind. */
HAUL_API int haul_place_parse(const char *text, struct haul_place *place);

/* Writes at most `size` bytes, terminated, cut where it does not fit; 16 bytes always do. Returns
 * `text`. */
HAUL_API const char *haul_place_format(struct haul_place place, char *text, size_t size);

/* ---- Node --------------------------------------------------------------------------------- */

enum haul_progress {
  HAUL_PROGRESS_THREAD = 0, /* the node runs a thread of its own */
  HAUL_PROGRESS_CALLER = 1  /* the node moves only inside haul_node_progress and waiting calls */
};

#define HAUL_SPIN_ALWAYS INT64_MAX

/* Start from HAUL_NODE_CONFIG_INIT; a field left 0 takes the default in its comment. */
struct haul_node_config {
  size_t size;         /* sizeof(struct haul_node_config), set by the initialiser */
  const char *name;    /* what peers see, 1 to 63 printable ASCII bytes without blanks; default:
                          host name and process id */
  int progress;        /* enum haul_progress */
  int insecure;        /* 1: listen beyond loopback also without a key */
  int64_t spin_ns;     /* poll this long before sleeping; 0: sleep at once;
                          HAUL_SPIN_ALWAYS: never sleep */
  int64_t liveness_ns; /* a silent peer is gone after this; default 5 s, at least 10 ms */
  int64_t transfer_ns; /* deadline of a transfer that names none; default 60 s */
  unsigned tcp_rails;  /* data connections a tcp peer; default 1 within a host, 2 beyond; max 16 */
  unsigned copy_threads;  /* helpers for large copies between host memories, at most 16; default:
                             one where there is a second processor; UINT_MAX: none */
  int peer_events;        /* 1: queue HAUL_PEER_JOINED (on the side that was connected to) and
                             HAUL_PEER_LEFT with the messages */
  size_t message_window;  /* bytes of unread messages kept a peer; default, and least, 1.34 MiB,
                             at most 1 GiB */
  size_t pool_bytes;      /* bytes kept in the pool of freed regions; default 256 MiB;
                             SIZE_MAX: none */
  unsigned max_peers;     /* default 1024 */
  unsigned max_regions;   /* published at a time; default 65536, at most 1,048,576 */
  unsigned max_transfers; /* under way to one peer at a time; default 16384 */
  size_t tcp_rate;        /* bytes a second that each data connection over tcp may send, at least
                             1 MiB; default, and SIZE_MAX: no limit */
  size_t staging_bytes;   /* pinned host buffers between devices and what else moves their bytes:
                             at most so many bytes; default 64 MiB, at least 8 MiB */
  const char *paths;      /* which paths transfers take: "tcp", or up to sizes: "tcp:64K,rdma";
                             default "auto": the one that takes the least time */
  int estimates_only;     /* 1: that time is estimated, not corrected by what transfers took */
  size_t tcp_zero_copy;   /* writes over tcp of as many bytes pass pages by reference (only memory
                             that haul allocated); default: where that gets cheaper than copying;
                             SIZE_MAX: never */
  const char *key;        /* the file of keys (haul key new): TCP connections prove who they are
                             with its first one, and are taken from who has any of them; what goes
                             over them is encrypted (TLS 1.3). Default: none */
  const char *certificate, *private_key, *authority; /* files in PEM that do the same: who this is,
                                                        the key to it, who says who others are */
  int plain_data;       /* 1: where both sides say so, data goes over tcp unencrypted; the control
                           connection never does */
  int process_tls;      /* 1: this process encrypts also where the kernel could */
  int any_user;         /* 1: Unix sockets take processes of any user; else this one's and root's */
  int any_observer;     /* 1: with a key, too, every peer may see what this node does (stats.h) */
  int64_t handshake_ns; /* time in which who connects has to prove who it is; default 5 s */
  unsigned max_peers_each; /* of one identity and one address; default: as max_peers */
  unsigned max_lookups;    /* published regions that one peer may know at a time, at most 1,048,576;
                              default, and UINT_MAX: no limit */
  size_t
      peer_bytes; /* in flight over tcp from one peer, in whole MiB; default, and most, 128 MiB */
  const char *directory_login; /* the file that says how this node logs in at etcd (haul.conf(5));
                                  default: it does not */
};

#define HAUL_NODE_CONFIG_INIT                                                                      \
  {                                                                                                \
    sizeof(struct haul_node_config), NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0,   \
        0, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0, NULL                                    \
  }

/* Opens this process's end. `config` may be NULL. Release with haul_node_close. What a field leaves
 * at 0 comes from the environment (HAUL_POOL for pool_bytes), else from the file that HAUL_CONF
 * names or /etc/haul/haul.conf (haul.conf(5)), else it is the default; `progress` and `peer_events`
 * are the program's alone. HAUL_EINVAL (with the field, the variable or FILE:LINE as object),
 * HAUL_ENOMEM, HAUL_ELIMIT (descriptors or threads). */
HAUL_API int haul_node_open(const struct haul_node_config *config, haul_node **node);

/* A setting as haul_node_open finds it. */
struct haul_setting {
  char name[32];    /* as in the file: "pool" */
  char value[96];   /* likewise: "256M" */
  char origin[280]; /* "default", "call", the variable, or "/etc/haul/haul.conf:12" */
};

/* What a node with this configuration, which may be NULL, would be opened with: fills up to *count
 * entries and sets *count to how many there are. Errors as of haul_node_open. */
HAUL_API int haul_setting_list(const struct haul_node_config *config, struct haul_setting *settings,
                               size_t *count);

/* Ends the node: transfers in flight end with HAUL_ECLOSED, peers see it leave, waiting calls
 * return HAUL_ECLOSED. `node` itself is no handle any more. Peers, remotes, regions and transfers
 * that came from it must still be released, in any order; until then calls with them are safe.
 * Those that would reach a peer, or publish, fail with HAUL_ECLOSED; regions stay memory that can
 * be touched and copied; transfers tell how they ended.
 * Blocks until the node's threads have ended, and until copies have that peers of this host are
 * making on memory that was wrapped: microseconds, and the liveness bound at most. In a forked
 * child it closes what the child inherited and leaves the parent's node and its peers alone. */
HAUL_API void haul_node_close(haul_node *node);

/* Listens on "tcp://address:port" (port 0: any free one; IPv6 in brackets) or "unix:///path"
 * ("unix://@name" for an abstract name), or takes over "fd://3", a listening socket that the
 * process was started with. May be called several times. A host's name must be found within 10 s,
 * else HAUL_ETIMEDOUT. HAUL_EADDRESS, HAUL_EADDRINUSE, HAUL_ELIMIT, HAUL_EINSECURE (not loopback,
 * and the node has neither a key nor config.insecure). */
HAUL_API int haul_node_listen(haul_node *node, const char *address);

/* The address of listener `index`, with the port that was chosen. HAUL_ERANGE past the last,
 * HAUL_EINVAL when it does not fit; 160 bytes always do. */
HAUL_API int haul_node_address(haul_node *node, size_t index, char *text, size_t size);

/* One descriptor that is readable when there is something to do: call haul_node_progress with
 * HAUL_NO_WAIT, then test transfers and receive messages. It belongs to the node. */
HAUL_API int haul_node_fd(haul_node *node);

/* Moves the node forward until something happened or `until` passes. Returns the number of events
 * handled (0: none by `until`). With a progress thread it waits for news from it. */
HAUL_API int haul_node_progress(haul_node *node, haul_deadline until);

/* ---- Devices, checks, counters ------------------------------------------------------------ */

struct haul_device {
  struct haul_place place;
  int emulated;    /* 1: software stands in for hardware */
  int numa;        /* NUMA node, -1 where unknown */
  uint64_t memory; /* bytes in all, 0 where unknown */
  char name[64];   /* "host memory", "emulated accelerator" */
  char pci[16];    /* "0000:17:00.0", empty where there is none */
  /* How its memory is shared: with processes of this host ("memfd", "descriptor"), and with NICs
   * ("memfd, dma-buf to NICs"); with these only: "dma-buf to NICs alone". */
  char exports[64];
};

/* Fills up to *count entries and sets *count to how many there are. */
HAUL_API int haul_device_list(haul_node *node, struct haul_device *devices, size_t *count);

/* A port of a NIC that a path of this host goes through, as seen from a place. */
struct haul_port {
  char path[16];            /* "rdma" */
  char name[48];            /* the NIC's, and the port's number: "mlx5_0/1" */
  int usable;               /* 0: `reason` says why not */
  int emulated;             /* 1: software stands in for hardware */
  int numa;                 /* NUMA node, -1 where unknown */
  int bridges;              /* PCI bridges that the place's device and it have in common */
  int numa_distance;        /* as the kernel has it: 10 within a node; -1 where unknown */
  uint64_t bits_per_second; /* of the line, 0 where unknown */
  char pci[16];             /* "0000:17:00.0", empty where there is none */
  char interface[16];       /* the network interface: "eth2", empty where there is none */
  char address[48];         /* how peers reach it: "::ffff:10.0.0.2" (a GID), "lid 12" */
  char reason[128];
};

/* Fills up to *count entries and sets *count to how many there are: for each path those that it can
 * use, best first for memory at `from`, and then the others. May block for drivers, which are asked
 * anew each time. HAUL_EPLACE. */
HAUL_API int haul_port_list(haul_node *node, struct haul_place from, struct haul_port *ports,
                            size_t *count);

enum haul_check_state {
  HAUL_CHECK_OK = 0,
  HAUL_CHECK_LIMITED = 1, /* works, and could work better */
  HAUL_CHECK_MISSING = 2
};

/* One thing that a path or a place needs. */
struct haul_check {
  int state;        /* enum haul_check_state */
  char backend[16]; /* "host", "sim", "cuda", "gaudi", "dpdk", "gpudev", "map", "rdma", "tcp" */
  char name[32];    /* unique: "map.cross-memory-attach" */
  char text[192];   /* what was found */
  char remedy[192]; /* a command that mends it; empty when there is nothing to mend */
};

/* Fills up to *count entries and sets *count to how many there are. */
HAUL_API int haul_check_list(haul_node *node, struct haul_check *checks, size_t *count);

/* Reads the counter of this name: "pool.hits", "path.tcp.bytes_out", "peer.NAME.map.writes",
 * "rdma.cache.hits".
 * HAUL_ENAME when there is none. haul_counter_list calls `each` for every counter that there is;
 * `each` must not call the library. docs: haul_counter(3) lists them. */
HAUL_API int haul_counter_read(haul_node *node, const char *name, uint64_t *value);
HAUL_API int haul_counter_list(haul_node *node,
                               void (*each)(void *user, const char *name, uint64_t value),
                               void *user);

/* ---- Regions ------------------------------------------------------------------------------ */

#define HAUL_REGION_PRIVATE                                                                        \
  1u /* no descriptor: cannot be exported, and peers of this host reach it by cross-memory attach  \
      */

/* Host memory that devices copy straight: a GPU's driver pins its pages at the first copy between
 * the two, for as long as the region lives, which takes some 0.1 ms a MiB; where it cannot, the
 * copy fails. Without it the processor copies to and from pinned buffers, which reports say. Such
 * regions do not come from the pool. */
#define HAUL_REGION_PINNED 2u

#define HAUL_READ  1u /* peers may read */
#define HAUL_WRITE 2u /* peers may write */
#define HAUL_LEND  4u /* for haul_region_export alone: see there */

/* Allocates `length` bytes at `place`; the address is a multiple of the page size. The content is
 * undefined, and host pages are taken from the system when they are first touched. Regions up to
 * 256 MiB come from a pool of freed ones. `flags` is 0 or of HAUL_REGION_…. Release with
 * haul_region_release. HAUL_EPLACE, HAUL_EINVAL (HAUL_REGION_PINNED for a device's memory),
 * HAUL_ENOMEM, HAUL_ELIMIT (descriptors: see HAUL_REGION_PRIVATE). */
HAUL_API int haul_region_alloc(haul_node *node, struct haul_place place, size_t length,
                               unsigned flags, haul_region **region);

/* Makes a region of memory that the caller owns. The place is found by asking every provider. The
 * memory must stay until haul_region_release has returned. HAUL_EINVAL for a range that is empty,
 * wraps around, is not mapped, or lies only partly within a device's memory. */
HAUL_API int haul_region_wrap(haul_node *node, void *address, size_t length, haul_region **region);

/* Makes a region of a range of a regular file, to be read: its bytes go from the page cache to a
 * peer without a copy in between where they lie (tcp passes the pages by reference), and are the
 * file's as they are when they are read. The descriptor, which must be readable, stays the
 * caller's; the file's bytes stay readable until haul_region_release. A byte that the file has lost
 * meanwhile (truncated, an error of its disk) raises SIGBUS in whoever reads it, a thread of haul's
 * too, as with any mapping. Whoever was sent pages by reference sees what is written to that range
 * of the file until it has read them, also after a transfer that was canceled. Since 0.1.
 * Blocks for the file system, as fstat(2) and mmap(2) do. HAUL_EINVAL (no regular file, not open
 * for reading), HAUL_ERANGE (the file ends before), HAUL_ENOTSUP (its file system maps no files,
 * or huge pages alone), HAUL_ENOMEM, HAUL_ESYSTEM. */
HAUL_API int haul_region_wrap_file(haul_node *node, int descriptor, uint64_t offset, size_t length,
                                   haul_region **region);

/* The address in the place's own terms. Only that of HAUL_HOST and HAUL_DPDK may be touched by the
 * CPU. */
HAUL_API void *haul_region_address(const haul_region *region);
HAUL_API size_t haul_region_length(const haul_region *region);
HAUL_API struct haul_place haul_region_place(const haul_region *region);
/* What this process may do with it: HAUL_READ, without HAUL_WRITE for imports that were shared so
 * and wrapped memory that is mapped so. */
HAUL_API unsigned haul_region_rights(const haul_region *region);

/* Copies between two regions of this node, whatever their places, and returns when the bytes are
 * there. HAUL_ERANGE, HAUL_ETIMEDOUT (the destination is then undefined). */
HAUL_API int haul_region_copy(haul_region *to, uint64_t to_offset, haul_region *from,
                              uint64_t from_offset, size_t length, haul_deadline until);

/* Makes the region's memory known to DPDK as external memory (rte_extmem_register), so that the
 * application's mempools and mbufs may lie in it; DPDK must be there (the check dpdk.library), and
 * EAL is started where the application has not. The range goes in pages of the system's size, to
 * the end of the last one: wrapped memory must begin and end with one. It stays registered until
 * haul_region_dpdk_unregister or the region's release; the application gives back what DPDK built
 * in it before either. Blocks for EAL's start, and some microseconds a MiB. Since 0.1.
 * HAUL_EINVAL (not whole pages, registered already, DPDK's own memory), HAUL_EACCESS (it may only
 * be read), HAUL_ENOTSUP (a device's memory, no DPDK, EAL does not start), HAUL_ELIMIT (DPDK has
 * room for no more). Of unregister: HAUL_EINVAL where it is not registered. */
HAUL_API int haul_region_dpdk_register(haul_region *region);
HAUL_API int haul_region_dpdk_unregister(haul_region *region);

#define HAUL_TENSOR_DIMENSIONS 8

/* How a tensor lies in a region. `type` is DLPack's: kDLInt 0, kDLUInt 1, kDLFloat 2, kDLBfloat 4
 * (dlpack.h 1.1, DLDataTypeCode). Strides count elements. */
struct haul_tensor {
  uint8_t type, bits;
  uint16_t lanes;
  uint32_t dimensions;
  uint64_t offset; /* of the first element, in bytes from the region's start */
  int64_t shape[HAUL_TENSOR_DIMENSIONS];
  int64_t strides[HAUL_TENSOR_DIMENSIONS];
};

/* What another process needs besides the descriptor. Plain bytes: send them as they are. A ticket
 * opens nothing without its descriptor but what its receiver has imported already, and the
 * descriptor nothing but this region. */
struct haul_ticket {
  uint8_t bytes[256];
};

/* Makes a ticket and a descriptor, which the caller closes once it is sent. `rights` is what the
 * importer may do: HAUL_READ, alone or with HAUL_WRITE. `layout` may be NULL. `descriptor` NULL: a
 * ticket alone, without a system call, for a receiver that was sent the descriptor with an earlier
 * ticket of the same region and rights: many tensors of one region need one. HAUL_ENOTSUP for
 * memory that cannot be shared: private, wrapped or imported; for all memory of HAUL_GAUDI, whose
 * devices one process opens at a time; and for memory of a GPU with HAUL_READ alone, since its
 * driver's descriptors allow writing.
 *
 * With HAUL_READ | HAUL_WRITE | HAUL_LEND memory of a GPU that the application made with cudaMalloc
 * and wrapped can be exported too, through the driver's legacy IPC. Its ticket opens the memory by
 * itself, in other processes of this host; `descriptor` becomes -1, and `layout` has no room in it.
 * The driver keeps such memory for nobody: what is freed while another process has it imported is
 * undefined there (CUDA driver API, cuIpcOpenMemHandle), so the owner frees it when it knows that
 * all importers have released theirs; haul_region_release does not wait for them. */
HAUL_API int haul_region_export(haul_region *region, unsigned rights,
                                const struct haul_tensor *layout, struct haul_ticket *ticket,
                                int *descriptor);

/* Maps another process's region. The cost does not grow with its size. The descriptor stays the
 * caller's. The memory lives at least as long as this region; once the owner released it, transfers
 * fail with HAUL_ESTALE, but for memory of a GPU, whose driver does not tell. An owner that ended
 * without a release leaves it as it was, and nothing in it tells: who has to know keeps a
 * connection to the owner's node, and gets HAUL_PEER_LEFT. `descriptor` -1: the memory that this
 * node imported before with a descriptor and a ticket of the same region and rights; such an import
 * is kept for five seconds after its last region's release (64 at most), and all regions of it
 * share one mapping. A ticket of HAUL_LEND needs no descriptor and is not kept. HAUL_ETICKET (with
 * -1: there is none, the descriptor is needed), HAUL_ESTALE,
 * HAUL_EPLACE (the memory is on a GPU that this process does not see). */
HAUL_API int haul_region_import(haul_node *node, const struct haul_ticket *ticket, int descriptor,
                                haul_region **region);

/* The layout in a ticket. HAUL_ENAME when it carries none, HAUL_ETICKET when it is damaged. */
HAUL_API int haul_ticket_layout(const struct haul_ticket *ticket, struct haul_tensor *layout);

/* Lets peers look the region up under `name` (1 to 255 printable ASCII bytes without blanks) and
 * use it within `rights`. With HAUL_WRITE alone it is not mapped, since what is mapped can be read:
 * it goes over rdma or tcp, with HAUL_CHECKSUM over tcp. One region may have several names.
 * HAUL_EEXIST, HAUL_ELIMIT. */
HAUL_API int haul_region_publish(haul_region *region, const char *name, unsigned rights);

/* Takes the name back: remotes that were looked up through it fail with HAUL_ESTALE from now on. */
HAUL_API int haul_region_unpublish(haul_region *region, const char *name);

/* Ends the region: its names are taken back and its transfers, this node's and peers', are
 * canceled. When it returns nobody reads or writes wrapped memory any more; that takes at most the
 * liveness bound where a peer must answer, and microseconds otherwise. */
HAUL_API void haul_region_release(haul_region *region);

/* ---- Peers -------------------------------------------------------------------------------- */

/* Connects to an address that a peer listens on, which may be this node itself, or to the node of a
 * name in a directory (directory.h, and its errors). Blocks until the peer answered; a node that
 * its caller drives is driven meanwhile, but it alone: when the peer is another such node of the
 * same thread, nobody answers. Release with haul_peer_close. HAUL_EADDRESS, HAUL_ECONNECT,
 * HAUL_EVERSION, HAUL_EPROTO, HAUL_ETIMEDOUT. */
HAUL_API int haul_peer_connect(haul_node *node, const char *address, haul_deadline until,
                               haul_peer **peer);

/* Adds a reference, for a peer that came with a message. Release with haul_peer_close. */
HAUL_API haul_peer *haul_peer_retain(haul_peer *peer);

/* Gives the reference back; the connection ends with the last one on the side that connected. */
HAUL_API void haul_peer_close(haul_peer *peer);

/* The name that the peer gave itself. Valid as long as the reference. */
HAUL_API const char *haul_peer_name(const haul_peer *peer);

/* 0 while the peer is there, HAUL_EPEER with the reason once it is gone. */
HAUL_API int haul_peer_status(haul_peer *peer);

/* Finds a published region. Release with haul_remote_release. Where `rdma` is open the owner pins
 * the whole region for it meanwhile, some gigabytes a second, counted against its limit of locked
 * memory, until the last remote to it is released or the peer leaves. Where that fails, or is not
 * done by `until`, `rdma` is closed for the remote with the reason. HAUL_ENAME, HAUL_EPEER. */
HAUL_API int haul_peer_lookup(haul_peer *peer, const char *name, haul_deadline until,
                              haul_remote **remote);

struct haul_published {
  uint64_t length;
  struct haul_place place;
  unsigned rights;
  char name[256];
};

/* Lists what the peer publishes, sorted by name: fills up to *count entries and sets *count to how
 * many there are. */
HAUL_API int haul_peer_list(haul_peer *peer, haul_deadline until, struct haul_published *entries,
                            size_t *count);

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

/* `length` bytes between offset `local` of the region and offset `remote` of the remote. Pieces of
 * one transfer must not overlap at the destination. */
struct haul_piece {
  uint64_t local, remote, length;
};

#define HAUL_PIECES_MAX 262144 /* pieces a transfer */

#define HAUL_REQUIRE_ZERO_COPY 1u /* one movement from source to destination, no buffer between */
#define HAUL_CHECKSUM          2u /* XXH3 over each slice at the source, checked at the destination */
/* Others follow at once: where several are sent cheaper together it may wait for them, until there
 * are 16 or 64 KiB of one peer, one without this flag, or 20 us have passed. */
#define HAUL_MORE 4u

/* Which of the transfers that wait for a path goes first. One of a lower priority that was passed
 * over 16 times goes next, so none waits for ever. */
enum haul_priority {
  HAUL_PRIORITY_LOW = -1,
  HAUL_PRIORITY_NORMAL = 0,
  HAUL_PRIORITY_HIGH = 1 /* small ones; over `tcp` they have a connection of their own */
};

struct haul_transfer_options {
  size_t size; /* sizeof(struct haul_transfer_options), set by the initialiser */
  unsigned flags;
  const char *only;       /* this path alone: "map", "rdma", "tcp"; NULL: the best one */
  haul_deadline deadline; /* the transfer fails with HAUL_ETIMEDOUT after it; 0: node's default */
  int priority;           /* enum haul_priority */
  /* Called once, after the transfer has ended and haul_transfer_test says how, by the thread that
   * drives the node, one call at a time; at the latest by haul_node_close. It needs a handle, and
   * may release it. It may call everything but haul_node_close (which does nothing there), also
   * what waits: the node is driven meanwhile, and further calls of `done` come after it. */
  void (*done)(void *user, haul_transfer *transfer);
  void *user;
};

#define HAUL_TRANSFER_OPTIONS_INIT                                                                 \
  { sizeof(struct haul_transfer_options), 0, NULL, 0, HAUL_PRIORITY_NORMAL, NULL, NULL }

/* Starts to move `count` pieces. `options` may be NULL. With `transfer` NULL the call returns when
 * the transfer has ended, with its result. Otherwise *transfer is a handle: release it with
 * haul_transfer_release. Small transfers over `map` are complete when the call returns. The local
 * bytes must stay untouched (write) or are undefined (read) until the transfer has ended. A write
 * is complete when its bytes are visible at the destination; a failed or canceled one leaves its
 * destination undefined. Nothing is moved unless every piece is valid.
 * HAUL_EINVAL (no pieces, a piece of no bytes), HAUL_ELIMIT (over HAUL_PIECES_MAX pieces, or
 * 2^64 bytes; or the peer is so slow that config.max_transfers are under way to it: wait for some
 * of them), HAUL_ERANGE, HAUL_EACCESS, HAUL_ENOPATH (no path satisfies the options: the hint says
 * why), HAUL_EPEER, HAUL_ESTALE. */
HAUL_API int haul_write(haul_remote *to, haul_region *from, const struct haul_piece *pieces,
                        size_t count, const struct haul_transfer_options *options,
                        haul_transfer **transfer);
HAUL_API int haul_read(haul_region *to, haul_remote *from, const struct haul_piece *pieces,
                       size_t count, const struct haul_transfer_options *options,
                       haul_transfer **transfer);

/* Starts one atomic operation on the 8 bytes at `offset` of the remote, a number in the processors'
 * byte order: haul_fetch_add adds `value` to it, modulo 2^64; haul_compare_swap puts `desired` in
 * its place if it is `expected`. What it was before lands in the 8 bytes at `result_offset` of
 * `result`, which tells whether a swap took place. Both offsets are multiples of 8, and so is the
 * address at which the remote's owner has the number. It gets its first value before others know of
 * it: by a store of the owner's before it is published, or a haul_write before the others are told.
 *
 * It is atomic with respect to every other one on these bytes, from whatever peer and over whatever
 * path, and to C11 atomics of 8 bytes on the processors of the owner's host. The one exception is
 * asked for: many NICs are atomic among their own operations alone, and such a one is used only
 * with `only` = "rdma". Then all who change these bytes must go over it. A haul_write or haul_read
 * is not atomic with anything.
 *
 * `options`, `transfer`, deadline, cancel and report are as for haul_read, with one piece of 8
 * bytes. HAUL_CHECKSUM is refused, as there is nothing to compare; HAUL_REQUIRE_ZERO_COPY leaves
 * `map` and `rdma`. It needs a remote with HAUL_READ and HAUL_WRITE, and memory there that the
 * owner's processors reach.
 *
 * It takes place at most once: what was handed to a path is not sent again on another one. When it
 * ends with HAUL_EPATH (the path broke), HAUL_EPEER, HAUL_ETIMEDOUT, HAUL_ECANCELED, HAUL_ECLOSED
 * or HAUL_ESTALE it may or may not have taken place, and `result` is undefined.
 * HAUL_EINVAL (an offset or an address that is no multiple of 8, HAUL_CHECKSUM), HAUL_ERANGE,
 * HAUL_EACCESS, HAUL_ENOPATH (no path can do it, or none satisfies the options: the hint says
 * why). */
HAUL_API int haul_fetch_add(haul_region *result, uint64_t result_offset, haul_remote *remote,
                            uint64_t offset, uint64_t value,
                            const struct haul_transfer_options *options, haul_transfer **transfer);
HAUL_API int haul_compare_swap(haul_region *result, uint64_t result_offset, haul_remote *remote,
                               uint64_t offset, uint64_t expected, uint64_t desired,
                               const struct haul_transfer_options *options,
                               haul_transfer **transfer);

/* 1 while it is on its way, 0 when it is complete, else the error it ended with. */
HAUL_API int haul_transfer_test(haul_transfer *transfer);

/* Waits for the end. 0, the error it ended with, or HAUL_ETIMEDOUT when `until` passed first: then
 * haul_transfer_test still says 1. */
HAUL_API int haul_transfer_wait(haul_transfer *transfer, haul_deadline until);

/* Asks for an early end and returns at once; 0 even if it had ended. Once it has ended, local
 * memory is not touched any more. Over `tcp` the peer of a write that ended early may still find
 * in what it had not read yet what the allocated memory holds then, until the region is released.
 */
HAUL_API int haul_transfer_cancel(haul_transfer *transfer);

/* Gives the handle back. A transfer still on its way goes on by itself. */
HAUL_API void haul_transfer_release(haul_transfer *transfer);

#define HAUL_PATHS_MAX 8

/* One way to go, open or closed. */
struct haul_path {
  char name[16]; /* "map", "rdma", "tcp" */
  int open;
  int chosen;
  double
      cost_ns; /* time for the length asked for, when open: the estimate, or as it was measured */
  unsigned copies_cpu, copies_kernel, copies_dma; /* how often each byte is copied, by whom */
  unsigned zero_copy;                             /* 1: satisfies HAUL_REQUIRE_ZERO_COPY */
  char detail[64];                                /* "mapped", "cross-memory attach", "2 rails" */
  char reason[192];                               /* closed: why; open and not chosen: why not;
                                                     chosen: who set it, or "" */
  double estimate_ns;                             /* before anything was measured */
  int measured;  /* 1: cost_ns comes from transfers of about this size */
  char send[12]; /* how the bytes leave the memory of the side that asks: "short" (in the call,
                    or within the request), "buffered" (copied first), "zero-copy" (handed over
                    where they lie) */
};

struct haul_report {
  size_t size;   /* sizeof(struct haul_report), set by the initialiser */
  int status;    /* as from haul_transfer_test */
  int operation; /* enum haul_operation */
  uint64_t bytes, pieces, slices;
  unsigned retries;  /* slices sent again on another path */
  unsigned checksum; /* 1: verified at the destination */
  int64_t queued_ns; /* from the call to the first byte handed to the path */
  int64_t wire_ns;   /* from there to the end */
  size_t path_count;
  struct haul_path paths[HAUL_PATHS_MAX]; /* the chosen one first */
  struct haul_place from, to;
  char peer[64];
  char name[256];   /* the remote's */
  int64_t setup_ns; /* of queued_ns, what is not waiting for others: checks, route, registration */
};

#define HAUL_REPORT_INIT                                                                           \
  {                                                                                                \
    sizeof(struct haul_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,                                      \
        {{{0}, 0, 0, 0, 0, 0, 0, 0, {0}, {0}, 0, 0, {0}}}, {0, 0}, {0, 0}, {0}, {0}, 0             \
  }

/* What is known of the transfer now; whole once it has ended. Start from HAUL_REPORT_INIT. */
HAUL_API int haul_transfer_report(haul_transfer *transfer, struct haul_report *report);

/* The report in words, several lines, as snprintf would write it; returns the length it needs. */
HAUL_API int haul_report_format(const struct haul_report *report, char *text, size_t size);

/* The paths that a transfer of `length` bytes in one piece would have, without moving a byte: the
 * chosen one first, then by cost, then the closed ones. Costs are for memory that was touched
 * before. Fills up to *count and sets *count. HAUL_EACCESS where the rights do not allow it,
 * HAUL_EINVAL for an atomic operation of another length than 8. */
HAUL_API int haul_explain(haul_region *local, haul_remote *remote, enum haul_operation operation,
                          uint64_t length, const struct haul_transfer_options *options,
                          struct haul_path *paths, size_t *count);

/* ---- Messages ----------------------------------------------------------------------------- */

enum haul_message_kind {
  HAUL_MESSAGE = 1,
  HAUL_PEER_JOINED = 2, /* with config.peer_events */
  HAUL_PEER_LEFT = 3
};

#define HAUL_MESSAGE_MAX 1048576 /* bytes a message */

/* Belongs to the receiver until haul_message_release. */
struct haul_message {
  int kind;        /* enum haul_message_kind */
  haul_peer *peer; /* who sent it; haul_peer_retain to keep it longer than the message */
  uint64_t tag;
  const void *bytes;
  size_t length;
  void *internal;
};

/* Sends a message. It arrives after every write to this peer, and every atomic operation, that was
 * started before this call has ended, and after earlier messages. It is sent also when such a write
 * failed, once nothing of that can arrive any more: who needs to know waits for the write first.
 * Returns when the bytes have been taken over; waits for those writes, and for room at the
 * receiver. What was taken over goes out also after haul_peer_close, but not after haul_node_close:
 * who ends right away waits for an answer first. HAUL_ETIMEDOUT (nothing was sent), HAUL_ELIMIT
 * (too long), HAUL_EPEER. */
HAUL_API int haul_message_send(haul_peer *peer, uint64_t tag, const void *bytes, size_t length,
                               haul_deadline until);

/* Takes the next message of any peer. HAUL_ETIMEDOUT when there is none by `until`. */
HAUL_API int haul_message_receive(haul_node *node, struct haul_message *message,
                                  haul_deadline until);
HAUL_API void haul_message_release(struct haul_message *message);

#ifdef __cplusplus
}
#endif

#endif
