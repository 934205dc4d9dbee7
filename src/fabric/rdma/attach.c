/* SPDX-License-Identifier: MIT
 * The owner's side of a remote region: what the peer's NIC may reach, from ATTACH to DETACH or
 * QUIET.
 *
 * Registering pins every page, at some gigabytes a second, and the loop has other peers to serve:
 * threads do it, which take the loop's lock for all else. Peers have their turns, one question at a
 * time, and so that one that comes, asks and goes leaves nothing behind but its turn, the threads
 * are as many as the node allows and not as its peers are. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/futex.h"
#include "core/thread.h"
#include "fabric/rdma/rdma.h"
#include "memory/copy.h"

/* An honest peer asks once a lookup, and waits for the answer. */
#define QUESTIONS_MAX 256u
#define SERVERS_MAX   8u

struct question {
  struct list link; /* endpoint->questions */
  struct rdma_record record;
};

/* ---- Attachments ---- */

struct rdma_attachment *rdma_find_attachment(struct rdma_endpoint *endpoint, uint64_t handle) {
  list_each(item, &endpoint->attachments) {
    struct rdma_attachment *attachment = list_entry(item, struct rdma_attachment, link);
    if (attachment->handle == handle)
      return attachment;
  }
  return NULL;
}

static void unregister(struct rdma_endpoint *endpoint, struct ibv_mr *mrs[RDMA_RAILS_MAX]) {
  for (unsigned i = 0; i < RDMA_RAILS_MAX; i++) {
    if (mrs[i])
      card_unexport(endpoint->rails[i].card, mrs[i]);
    mrs[i] = NULL;
  }
}

static void free_attachment(struct rdma_endpoint *endpoint, struct rdma_attachment *attachment) {
  unregister(endpoint, attachment->registrations);
  region_put(attachment->region);
  alloc_free(attachment);
}

static void end_attachment(struct rdma_endpoint *endpoint, struct rdma_attachment *attachment) {
  list_remove(&attachment->link);
  free_attachment(endpoint, attachment);
}

/* One DETACH or QUIET for each ATTACH that was granted: the peer's requests on it have ended. */
int rdma_on_let_go(struct rdma_endpoint *endpoint, uint64_t handle) {
  struct rdma_attachment *attachment = rdma_find_attachment(endpoint, handle);
  if (!attachment)
    return HAUL_EPROTO;
  if (--attachment->uses == 0)
    end_attachment(endpoint, attachment);
  return 0;
}

void rdma_revoke(struct rdma_endpoint *endpoint, uint64_t handle) {
  struct rdma_attachment *attachment = rdma_find_attachment(endpoint, handle);
  if (!attachment || attachment->revoked)
    return;
  attachment->revoked = true;
  rdma_say(endpoint, &(struct rdma_record){.type = RDMA_REVOKED, .handle = handle});
}

bool rdma_touches(struct rdma_endpoint *endpoint, uint64_t handle) {
  return rdma_find_attachment(endpoint, handle) || landings_touch(endpoint, handle);
}

void rdma_end_attachments(struct rdma_endpoint *endpoint) {
  while (!list_empty(&endpoint->attachments))
    end_attachment(endpoint, list_entry(endpoint->attachments.next, struct rdma_attachment, link));
  for (struct list *item; (item = list_take(&endpoint->questions));)
    alloc_free(list_entry(item, struct question, link));
  loan_close(endpoint, &endpoint->loan);
}

/* ---- Registering, without the lock ---- */

static int register_region(struct rdma_endpoint *endpoint, struct rdma_attachment *attachment) {
  int code = 0;
  for (unsigned i = 0; i < endpoint->rail_count && code == 0; i++)
    code = card_export(endpoint->rails[i].card, &attachment->region->memory, attachment->rights,
                       &attachment->registrations[i]);
  return code;
}

/* What no NIC takes goes through the loan, where the device copies to and from this host's memory.
 * `loan`: to be filled, NULL where the endpoint has one. */
static int lend_instead(struct rdma_endpoint *endpoint, struct rdma_attachment *attachment,
                        struct rdma_loan *loan, int code) {
  const struct memory *memory = &attachment->region->memory;
  unregister(endpoint, attachment->registrations);
  if (memory->view || !copy_stages(memory))
    return code;
  attachment->staged = true;
  return loan ? loan_open(endpoint, memory->place, loan) : 0;
}

/* The attachment takes over the view's reference; NULL with the detail. */
static struct rdma_attachment *attach(struct rdma_endpoint *endpoint,
                                      const struct export_view *view, struct rdma_loan *loan) {
  struct rdma_attachment *attachment = alloc_zero(1, sizeof *attachment);
  if (!attachment) {
    error_memory("rdma attachment");
    region_put(view->region);
    return NULL;
  }
  attachment->handle = view->handle;
  attachment->rights = view->rights;
  attachment->region = view->region;
  int code = register_region(endpoint, attachment);
  if (code)
    code = lend_instead(endpoint, attachment, loan, code);
  if (code == 0)
    return attachment;
  free_attachment(endpoint, attachment);
  return NULL;
}

/* ---- Answers, with the lock ---- */

static void refuse(struct rdma_record *answer, int code, const char *reason) {
  answer->status = code;
  snprintf(answer->reason, sizeof answer->reason, "%.127s", reason);
}

/* Where the peer's NIC finds the region's bytes. */
static void describe(const struct rdma_endpoint *endpoint, const struct rdma_attachment *attachment,
                     struct rdma_record *answer) {
  const struct memory *memory = &attachment->region->memory;
  const struct memory *reached = attachment->staged ? &endpoint->loan.region->memory : memory;
  answer->address = (uintptr_t)reached->address;
  answer->length = memory->length;
  answer->rails = (uint8_t)endpoint->rail_count;
  answer->number = attachment->number;
  bool atomic =
      !attachment->staged && card_operates(endpoint->rails[0].card, memory, attachment->rights);
  answer->flags =
      (uint8_t)((attachment->staged ? RDMA_STAGED : 0) |
                (memory->provider->fence ? RDMA_FENCED_WRITES : 0) | (atomic ? RDMA_ATOMIC : 0));
  answer->slots = attachment->staged ? (uint8_t)endpoint->loan.slots : 0;
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    answer->keys[i] = attachment->staged ? endpoint->loan.registrations[i]->rkey
                                         : attachment->registrations[i]->rkey;
}

static bool is_published(struct rdma_endpoint *endpoint, uint64_t handle) {
  struct export_view view;
  const struct link *link = endpoint->base.link;
  if (exports_find(link->fabric->exports, handle, link->identity, &view) != 0)
    return false;
  region_put(view.region);
  return true;
}

/* It was registered while the world went on: the region may have been withdrawn, the channel may
 * have ended; then its keys were never told to anybody. */
static void install(struct rdma_endpoint *endpoint, struct rdma_attachment *attachment,
                    struct rdma_loan *loan) {
  if (endpoint->channel.fd < 0 || !is_published(endpoint, attachment->handle)) {
    free_attachment(endpoint, attachment);
    return;
  }
  if (attachment->staged && !endpoint->loan.region) {
    endpoint->loan = *loan;
    *loan = (struct rdma_loan){.region = NULL};
  }
  attachment->number = ++endpoint->next_number;
  list_append(&endpoint->attachments, &attachment->link);
}

static void answer(struct rdma_endpoint *endpoint, const struct rdma_record *question, int code,
                   const char *reason) {
  struct rdma_record record = {
      .type = RDMA_ATTACHED, .request = question->request, .handle = question->handle};
  struct rdma_attachment *attachment = rdma_find_attachment(endpoint, question->handle);
  if (attachment && !attachment->revoked) {
    attachment->uses++;
    describe(endpoint, attachment, &record);
  } else {
    refuse(&record, code ? code : HAUL_ESTALE,
           code ? reason : "the region is not published any more");
  }
  rdma_say(endpoint, &record);
}

/* ---- The thread ---- */

/* With the lock, which it gives up while it registers. */
static void serve(struct rdma_endpoint *endpoint, const struct rdma_record *question) {
  struct fabric *fabric = endpoint->base.link->fabric;
  struct rdma_attachment *attachment = NULL;
  struct rdma_loan loan = {.region = NULL};
  struct export_view view;
  int code = 0;
  char reason[128] = "";
  bool lends = !endpoint->loan.region;
  if (!rdma_find_attachment(endpoint, question->handle) &&
      exports_find(fabric->exports, question->handle, endpoint->base.link->identity, &view) == 0) {
    loop_unlock(fabric->loop);
    attachment = attach(endpoint, &view, lends ? &loan : NULL);
    if (!attachment) {
      code = haul_error_last()->code;
      snprintf(reason, sizeof reason, "%.127s", haul_error_last()->text);
    }
    loop_lock(fabric->loop);
    if (attachment)
      install(endpoint, attachment, &loan);
    loan_close(endpoint, &loan); /* nobody needs it any more */
  }
  answer(endpoint, question, code, reason);
}

/* With the lock: whose turn it is, with a reference; it goes behind the others. NULL: nobody asks.
 */
static struct rdma_endpoint *take_turn(struct rdma_node *node) {
  list_each(item, &node->endpoints) {
    struct rdma_endpoint *endpoint = list_entry(item, struct rdma_endpoint, peer);
    struct link *link = endpoint->base.link;
    if (endpoint->serving || list_empty(&endpoint->questions))
      continue;
    endpoint->serving = true;
    link->retain(link);
    list_remove(item);
    list_append(&node->endpoints, item);
    return endpoint;
  }
  return NULL;
}

/* There is none when the channel ended meanwhile. */
static void serve_first(struct rdma_endpoint *endpoint) {
  struct list *item = list_take(&endpoint->questions);
  struct question *question = item ? list_entry(item, struct question, link) : NULL;
  if (question)
    serve(endpoint, &question->record);
  alloc_free(question);
  endpoint->serving = false;
}

static void *serve_all(void *user) {
  struct rdma_node *node = ((struct rdma_endpoint *)user)->node;
  for (struct rdma_endpoint *endpoint = user, *next; endpoint; endpoint = next) {
    struct link *link = endpoint->base.link;
    struct loop *loop = link->fabric->loop;
    loop_lock(loop);
    serve_first(endpoint);
    next = take_turn(node);
    node->servers -= !next;
    loop_unlock(loop);
    link->put(link);
  }
  _Atomic uint32_t *registering = &node->registering;
  atomic_fetch_sub(registering, 1); /* the node may end from here on: the address is but a key */
  futex_wake(registering);
  return NULL;
}

/* A thread's hold of a peer would keep the NICs open after the node's close. */
void rdma_await_registering(struct rdma_node *node) {
  for (uint32_t count; (count = atomic_load(&node->registering)) > 0;)
    futex_wait(&node->registering, count, HAUL_FOREVER);
}

/* One more thread, where there may be and somebody has to wait. */
static int start_server(struct rdma_node *node) {
  struct rdma_endpoint *endpoint = node->servers < SERVERS_MAX ? take_turn(node) : NULL;
  pthread_t thread;
  if (!endpoint)
    return 0;
  atomic_fetch_add(&node->registering, 1);
  int system = thread_start(&thread, serve_all, endpoint);
  if (system) {
    atomic_fetch_sub(&node->registering, 1);
    endpoint->serving = false;
    endpoint->base.link->put(endpoint->base.link);
    return error_system(system, NULL, "pthread_create");
  }
  pthread_detach(thread);
  node->servers++;
  return 0;
}

static bool is_import(struct rdma_endpoint *endpoint, uint64_t handle) {
  struct export_view view;
  const struct link *link = endpoint->base.link;
  if (exports_find(link->fabric->exports, handle, link->identity, &view) != 0)
    return false;
  bool imported = view.region->memory.imported;
  region_put(view.region);
  return imported;
}

int rdma_on_attach(struct rdma_endpoint *endpoint, const struct rdma_record *record) {
  if (!endpoint->ready_sent)
    return HAUL_EPROTO;
  unsigned count = 0;
  list_each(item, &endpoint->questions) count++;
  if (count >= QUESTIONS_MAX)
    return HAUL_EPROTO;
  if (is_import(endpoint, record->handle)) {
    answer(endpoint, record, HAUL_ENOTSUP,
           "it is an import there; connect to the node that owns the memory");
    return 0;
  }
  struct question *question = alloc_zero(1, sizeof *question);
  int code = HAUL_ENOMEM;
  if (!question) {
    error_memory("rdma question");
  } else {
    question->record = *record;
    list_append(&endpoint->questions, &question->link);
    code = start_server(endpoint->node);
    if (code)
      list_remove(&question->link);
  }
  if (code) {
    answer(endpoint, record, code, haul_error_last()->text);
    alloc_free(question);
  }
  return 0;
}
