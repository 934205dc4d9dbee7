/* SPDX-License-Identifier: MIT
 * One node's event loop: descriptors, timers, pollers, deferred calls and waiting.
 *
 * Lock rules. `loop_lock` guards everything that callbacks touch. Callbacks run with it held; it is
 * never held while sleeping. Locks of the layers above are taken after it, never before.
 * loop_notify and loop_wake take no lock and may be called anywhere. loop_wait takes none either
 * and may be called anywhere but in callbacks. */
#ifndef HAUL_CORE_LOOP_H
#define HAUL_CORE_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "core/combiner.h"
#include "core/timers.h"

struct loop;

/* A watched descriptor. Embedded by its owner; zero it before the first loop_watch. */
struct watch {
  void (*ready)(struct watch *watch, uint32_t events);
  int fd;
  uint32_t events;
  uint32_t slot; /* 0: not watched */
  uint32_t generation;
};

/* Called in every round; returns whether it made progress. While `urgent` the loop sleeps for at
 * most 20 µs. A poller that sets `rests` is not called again before loop_poll, so that a round
 * costs nothing for idle peers. */
struct poller {
  struct list link; /* empty while it rests */
  bool (*poll)(struct poller *poller);
  /* Called before a sleep: requests an event for the next completion. Returns whether a completion
   * may be there already. NULL: the poller has no events. */
  bool (*arm)(struct poller *poller);
  bool urgent;
  bool rests;      /* with the lock, within `poll`: nothing to do until loop_poll */
  uint32_t number; /* in the loop; 0: none is free, and it never rests */
};

/* `own_thread`: a dedicated thread calls loop_run, so loop_wait only sleeps. */
int loop_open(bool own_thread, int64_t spin_ns, struct loop **loop);
void loop_close(struct loop *loop);
/* In a forked child: only closes the descriptors. */
void loop_forked(struct loop *loop);

void loop_lock(struct loop *loop);
void loop_unlock(struct loop *loop);

/* All with the lock held. loop_watch returns 0 or a negative HAUL_E… code with the detail. */
int loop_watch(struct loop *loop, struct watch *watch, int fd, uint32_t events,
               void (*ready)(struct watch *watch, uint32_t events));
void loop_unwatch(struct loop *loop, struct watch *watch);
/* Changes the events; also safe without the lock while the watch cannot be unwatched. */
void loop_change(struct loop *loop, struct watch *watch, uint32_t events);
void loop_timer_start(struct loop *loop, struct timer *timer, int64_t at);
/* `at`, or up to `slack` ns later: timers of many peers then fire in one round. */
void loop_timer_start_about(struct loop *loop, struct timer *timer, int64_t at, int64_t slack);
void loop_timer_stop(struct timer *timer);
void loop_poller_start(struct loop *loop, struct poller *poller,
                       bool (*poll)(struct poller *poller));
void loop_poller_stop(struct loop *loop, struct poller *poller);
/* Ends the rest of a poller, in a callback that leaves it something to do. */
void loop_poller_resume(struct loop *loop, struct poller *poller);

/* Runs rounds until an event was handled, `until` passed or loop_wake was called. Returns the
 * number of events. One thread runs at a time; others wait until it notifies them. */
int loop_run(struct loop *loop, int64_t until);

/* Waits until done(user) is true or `until` passes; returns the last done(user). Runs the loop when
 * no other thread does. `help`, if not NULL, may do a part of the work; it then returns true. */
bool loop_wait(struct loop *loop, bool (*done)(void *user), bool (*help)(void *user), void *user,
               int64_t until);

/* For a caller that polls for an end and found none at `now`. Where it polls without a pause, it
 * runs a round itself each 2 us and gets true, and the loop's own thread leaves the descriptors to
 * it: no thread has to wake up first. Other calls only compare times. */
bool loop_assist(struct loop *loop, int64_t now);

/* Wakes waiters, which check their conditions again. */
void loop_notify(struct loop *loop);
/* Ends the sleep of the thread that runs the loop. */
void loop_wake(struct loop *loop);
/* Has the poller called in the next round, and wakes the loop. Takes no lock; between
 * loop_poller_start and the end of the loop. The caller changes first what the poller looks at. */
void loop_poll(struct loop *loop, const struct poller *poller);
/* loop_wake as a callback with an argument. */
static inline void loop_wake_callback(void *loop) {
  loop_wake(loop);
}

/* A deferred call: runs without locks and may wait, as a wait within it drives the loop. Embedded
 * by its owner, which keeps it in place until it runs. */
struct deferred {
  struct list link;
  void (*run)(struct deferred *deferred);
};

/* Queues the call for the thread that runs the loop. Calls run one at a time and in order. Callable
 * from anywhere. */
void loop_defer(struct loop *loop, struct deferred *deferred);
/* Runs the queued calls, unless another thread runs them. Called by the thread that drives the
 * loop, or after the last run; not within a deferred call. Returns their number. */
int loop_run_deferred(struct loop *loop);
/* Is the calling thread in a deferred call of this loop? */
bool loop_in_deferred(const struct loop *loop);

/* Readable when loop_run has something to do, or, with an own thread, after loop_notify.
 * loop_clear_notification makes it unreadable again and returns whether it was readable. */
int loop_descriptor(struct loop *loop);
bool loop_clear_notification(struct loop *loop);

/* Ends loop_wait and loop_run everywhere, for good. */
void loop_end(struct loop *loop);
bool loop_has_ended(struct loop *loop);

#endif
