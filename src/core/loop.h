/* SPDX-License-Identifier: MIT
 * One node's event loop: descriptors, timers, pollers, and waiting for news.
 *
 * Lock rules. `loop_lock` guards everything that callbacks touch; every callback runs with it held,
 * and it is never held while sleeping. Locks of the layers above are taken after it, never before.
 * loop_notify, loop_wake and loop_wait take no lock and may be called from anywhere but callbacks
 * (loop_wait) or anywhere at all (the other two). */
#ifndef HAUL_CORE_LOOP_H
#define HAUL_CORE_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "core/combiner.h"

struct loop;

/* A descriptor to look at. Embedded by its owner; zero it before the first loop_watch. */
struct watch {
  void (*ready)(struct watch *watch, uint32_t events);
  int fd;
  uint32_t events;
  uint32_t slot; /* 0: not watched */
  uint32_t generation;
};

/* Fires once, at or after `at`. Embedded; timer_init before use. */
struct timer {
  struct list link;
  int64_t at;
  void (*fire)(struct timer *timer);
};

/* Called in every round; returns whether something happened. While `urgent` the loop does not sleep
 * longer than some microseconds. */
struct poller {
  struct list link;
  bool (*poll)(struct poller *poller);
  /* Called before a sleep, not before a round of polling: asks for an event when there is something
   * to poll for, and returns whether it may be there already. NULL: it has nothing to ask. */
  bool (*arm)(struct poller *poller);
  bool urgent;
};

/* `own_thread`: somebody else calls loop_run in a thread of its own, so that loop_wait only sleeps.
 */
int loop_open(bool own_thread, int64_t spin_ns, struct loop **loop);
void loop_close(struct loop *loop);
/* In a forked child: closes the descriptors and touches nothing else. */
void loop_forked(struct loop *loop);

void loop_lock(struct loop *loop);
void loop_unlock(struct loop *loop);

/* All with the lock held. loop_watch returns 0 or a negative HAUL_E… code with the detail. */
int loop_watch(struct loop *loop, struct watch *watch, int fd, uint32_t events,
               void (*ready)(struct watch *watch, uint32_t events));
void loop_unwatch(struct loop *loop, struct watch *watch);
/* Changes the events; also safe without the lock while the watch cannot be unwatched. */
void loop_change(struct loop *loop, struct watch *watch, uint32_t events);
void timer_init(struct timer *timer, void (*fire)(struct timer *timer));
void loop_timer_start(struct loop *loop, struct timer *timer, int64_t at);
void loop_timer_stop(struct timer *timer);
void loop_poller_start(struct loop *loop, struct poller *poller,
                       bool (*poll)(struct poller *poller));
void loop_poller_stop(struct loop *loop, struct poller *poller);

/* Runs rounds until something happened, `until` passed or loop_wake was called; returns how many
 * events it handled. One thread at a time; a second one waits for news of the first. */
int loop_run(struct loop *loop, int64_t until);

/* Waits until done(user) is true or `until` passes; returns the last done(user). Runs the loop
 * itself where nobody else does. `help`, when not NULL, may do a piece of the work and say so with
 * true. */
bool loop_wait(struct loop *loop, bool (*done)(void *user), bool (*help)(void *user), void *user,
               int64_t until);

/* Something that a waiter may be waiting for has happened. */
void loop_notify(struct loop *loop);
/* Ends a sleep of the thread that runs the loop. */
void loop_wake(struct loop *loop);
/* The same, for who keeps a function and its argument. */
static inline void loop_wake_callback(void *loop) {
  loop_wake(loop);
}

/* Something to be run without any lock: it may call whatever may wait, as a wait within it drives
 * the loop. Embedded by its owner, who keeps it in place until it runs. */
struct deferred {
  struct list link;
  void (*run)(struct deferred *deferred);
};

/* Whoever runs the loop runs it soon after, one at a time and in order; from anywhere. */
void loop_defer(struct loop *loop, struct deferred *deferred);
/* Those that wait, unless a thread is at them: by who drives the loop, or after the end of all
 * runs. Returns how many were run. Not within one. */
int loop_run_deferred(struct loop *loop);
/* Whether the calling thread is in one of them. */
bool loop_in_deferred(const struct loop *loop);

/* Readable when loop_run would find something, or, with an own thread, after news;
 * loop_clear_notification then makes it unreadable again and returns whether there was news. */
int loop_descriptor(struct loop *loop);
bool loop_clear_notification(struct loop *loop);

/* Ends loop_wait and loop_run everywhere, for good. */
void loop_end(struct loop *loop);
bool loop_has_ended(struct loop *loop);

#endif
