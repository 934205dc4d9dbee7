/* SPDX-License-Identifier: MIT */
#include "core/loop.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/futex.h"
#include "core/sys.h"

#define EVENTS_A_ROUND 32
#define URGENT_NS      20000 /* longest sleep while a poller is urgent */
#define POLLS_A_LOOK   16    /* polling rounds between two looks at the descriptors */

/* A watch is named by slot and generation, so that an event fetched before loop_unwatch finds
 * nothing after it. */
struct slot {
  struct watch *watch;
  uint32_t generation;
};

struct loop {
  pthread_mutex_t lock; /* see loop.h */
  int epoll, wake;      /* wake: an eventfd that is part of the epoll set */
  int notice;           /* with an own thread: what loop_descriptor hands out */
  int alarm;            /* without: a timerfd in the epoll set, so that timers make it readable */
  bool own_thread;
  int64_t spin_ns;
  struct watch wake_watch, alarm_watch;
  struct slot *slots; /* lock; slot 0 is never used */
  uint32_t slot_count;
  struct list timers;        /* lock; by time */
  struct list pollers;       /* lock */
  struct list *next_poller;  /* lock: the one that run_pollers goes on with */
  _Atomic uint32_t running;  /* 1: a thread is in loop_run's rounds */
  _Atomic uint32_t sleeping; /* 1: it sleeps, or is about to; pairs with loop_wake */
  _Atomic uint32_t woken;
  _Atomic uint32_t news;    /* futex word: counts up at each loop_notify */
  _Atomic uint32_t waiters; /* sleepers on it */
  _Atomic uint32_t ended;
  _Atomic bool noticed; /* somebody polls what loop_descriptor gave */
  struct inbox errands;
  _Atomic bool running_errands; /* a thread runs them */
  int64_t next_at;              /* the running thread's: when the next thing is due */
  unsigned round;               /* the running thread's: polling rounds so far */
};

static void on_wake(struct watch *watch, uint32_t events) {
  (void)events;
  uint64_t count;
  ssize_t got = read(watch->fd, &count, sizeof count);
  (void)got; /* EAGAIN: another round took it */
}

static int open_descriptors(struct loop *loop) {
  loop->epoll = epoll_create1(EPOLL_CLOEXEC);
  loop->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  loop->notice = loop->own_thread ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
  loop->alarm = loop->own_thread ? -1 : timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (loop->epoll < 0 || loop->wake < 0 || (loop->own_thread ? loop->notice : loop->alarm) < 0)
    return error_system(errno, NULL, "epoll_create1, eventfd or timerfd_create");
  int code = loop_watch(loop, &loop->wake_watch, loop->wake, EPOLLIN, on_wake);
  if (code == 0 && loop->alarm >= 0)
    code = loop_watch(loop, &loop->alarm_watch, loop->alarm, EPOLLIN, on_wake);
  return code;
}

int loop_open(bool own_thread, int64_t spin_ns, struct loop **out) {
  struct loop *loop = alloc_zero(1, sizeof *loop);
  if (!loop)
    return error_memory("event loop");
  pthread_mutex_init(&loop->lock, NULL);
  list_init(&loop->timers);
  list_init(&loop->pollers);
  loop->own_thread = own_thread;
  loop->spin_ns = spin_ns;
  int code = open_descriptors(loop);
  if (code) {
    loop_close(loop);
    return code;
  }
  *out = loop;
  return 0;
}

void loop_forked(struct loop *loop) {
  if (loop->epoll >= 0)
    close(loop->epoll);
  if (loop->wake >= 0)
    close(loop->wake);
  if (loop->notice >= 0)
    close(loop->notice);
  if (loop->alarm >= 0)
    close(loop->alarm);
}

void loop_close(struct loop *loop) {
  if (!loop)
    return;
  loop_forked(loop);
  alloc_free(loop->slots);
  pthread_mutex_destroy(&loop->lock);
  alloc_free(loop);
}

void loop_lock(struct loop *loop) {
  pthread_mutex_lock(&loop->lock);
}

void loop_unlock(struct loop *loop) {
  pthread_mutex_unlock(&loop->lock);
}

/* ---- Errands ---- */

static _Thread_local const struct loop *in_errand; /* of this loop */

bool loop_in_deferred(const struct loop *loop) {
  return in_errand == loop;
}

void loop_defer(struct loop *loop, struct deferred *deferred) {
  inbox_put(&loop->errands, &deferred->link);
  loop_wake(loop);
}

/* What comes while they run is for the next look. */
static int run_some(struct loop *loop) {
  int count = 0;
  const struct loop *outer = in_errand;
  struct list errands = LIST_INIT(errands);
  inbox_take(&loop->errands, &errands);
  in_errand = loop;
  for (struct list *item; (item = list_take(&errands));) {
    struct deferred *deferred = list_entry(item, struct deferred, link);
    deferred->run(deferred);
    count++;
  }
  in_errand = outer;
  return count;
}

/* Not within an deferred: those that follow wait for its end. Who leaves looks once more: one that
 * came to find him at it has left them to him. */
int loop_run_deferred(struct loop *loop) {
  int count = 0;
  while (!inbox_is_empty(&loop->errands) && !atomic_exchange(&loop->running_errands, true)) {
    count += run_some(loop);
    atomic_store(&loop->running_errands, false);
    atomic_thread_fence(memory_order_seq_cst);
  }
  return count;
}

/* ---- Descriptors ---- */

static uint32_t free_slot(struct loop *loop) {
  for (uint32_t i = 1; i < loop->slot_count; i++)
    if (!loop->slots[i].watch)
      return i;
  uint32_t count = loop->slot_count ? loop->slot_count * 2 : 16;
  struct slot *slots = alloc_resize(loop->slots, count * sizeof *slots);
  if (!slots)
    return 0;
  memset(slots + loop->slot_count, 0, (count - loop->slot_count) * sizeof *slots);
  uint32_t first = loop->slot_count ? loop->slot_count : 1;
  loop->slots = slots;
  loop->slot_count = count;
  return first;
}

static struct epoll_event event_of(const struct watch *watch) {
  return (struct epoll_event){.events = watch->events,
                              .data.u64 = (uint64_t)watch->generation << 32 | watch->slot};
}

int loop_watch(struct loop *loop, struct watch *watch, int fd, uint32_t events,
               void (*ready)(struct watch *watch, uint32_t events)) {
  uint32_t slot = free_slot(loop);
  if (slot == 0)
    return error_memory("event loop");
  *watch = (struct watch){.ready = ready, .fd = fd, .events = events, .slot = slot};
  watch->generation = ++loop->slots[slot].generation;
  loop->slots[slot].watch = watch;
  struct epoll_event event = event_of(watch);
  if (epoll_ctl(loop->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    loop->slots[slot].watch = NULL;
    watch->slot = 0;
    return error_system(errno, NULL, "epoll_ctl");
  }
  return 0;
}

void loop_unwatch(struct loop *loop, struct watch *watch) {
  if (watch->slot == 0)
    return;
  epoll_ctl(loop->epoll, EPOLL_CTL_DEL, watch->fd, NULL);
  loop->slots[watch->slot].watch = NULL;
  watch->slot = 0;
}

void loop_change(struct loop *loop, struct watch *watch, uint32_t events) {
  if (watch->slot == 0 || watch->events == events)
    return;
  watch->events = events;
  struct epoll_event event = event_of(watch);
  epoll_ctl(loop->epoll, EPOLL_CTL_MOD, watch->fd, &event);
}

static int dispatch(struct loop *loop, const struct epoll_event *events, int count) {
  int handled = 0;
  for (int i = 0; i < count; i++) {
    uint32_t slot = (uint32_t)events[i].data.u64;
    uint32_t generation = (uint32_t)(events[i].data.u64 >> 32);
    if (slot >= loop->slot_count || loop->slots[slot].generation != generation)
      continue;
    struct watch *watch = loop->slots[slot].watch;
    if (!watch)
      continue;
    handled += watch != &loop->wake_watch && watch != &loop->alarm_watch;
    watch->ready(watch, events[i].events);
  }
  return handled;
}

/* ---- Timers and pollers ---- */

void timer_init(struct timer *timer, void (*fire)(struct timer *timer)) {
  list_init(&timer->link);
  timer->fire = fire;
}

void loop_timer_start(struct loop *loop, struct timer *timer, int64_t at) {
  list_remove(&timer->link);
  timer->at = at;
  struct list *before = loop->timers.previous; /* most timers are set later than all others */
  while (before != &loop->timers && list_entry(before, struct timer, link)->at > at)
    before = before->previous;
  timer->link.previous = before;
  timer->link.next = before->next;
  before->next->previous = &timer->link;
  before->next = &timer->link;
  if (loop->timers.next == &timer->link)
    loop_wake(loop);
}

void loop_timer_stop(struct timer *timer) {
  list_remove(&timer->link);
}

static int fire_timers(struct loop *loop, int64_t now) {
  int fired = 0;
  while (!list_empty(&loop->timers)) {
    struct timer *timer = list_entry(loop->timers.next, struct timer, link);
    if (timer->at > now)
      break;
    list_remove(&timer->link);
    timer->fire(timer);
    fired++;
  }
  return fired;
}

void loop_poller_start(struct loop *loop, struct poller *poller,
                       bool (*poll)(struct poller *poller)) {
  poller->poll = poll;
  poller->urgent = false;
  list_append(&loop->pollers, &poller->link);
}

void loop_poller_stop(struct loop *loop, struct poller *poller) {
  if (loop->next_poller == &poller->link)
    loop->next_poller = poller->link.next;
  list_remove(&poller->link);
}

/* A poller may stop any poller, itself too. */
static int run_pollers(struct loop *loop, bool *urgent) {
  int handled = 0;
  for (struct list *item = loop->pollers.next; item != &loop->pollers; item = loop->next_poller) {
    struct poller *poller = list_entry(item, struct poller, link);
    loop->next_poller = item->next;
    handled += poller->poll(poller);
    if (item->next != item) /* it was not stopped */
      *urgent |= poller->urgent;
  }
  loop->next_poller = NULL;
  return handled;
}

/* ---- Rounds ---- */

/* epoll_pwait2(2) came with Linux 5.11, and some sandboxes do not have it: then sleeps are rounded
 * up to milliseconds. */
static int wait_events(int epoll, struct epoll_event *events, const struct timespec *span) {
  int count = epoll_pwait2(epoll, events, EVENTS_A_ROUND, span, NULL);
  if (count >= 0 || errno != ENOSYS)
    return count;
  int64_t ms = span ? span->tv_sec * 1000 + (span->tv_nsec + 999999) / 1000000 : -1;
  return epoll_wait(epoll, events, EVENTS_A_ROUND, ms < INT_MAX ? (int)ms : INT_MAX);
}

/* Whether there are news of which the waiter that runs has not asked yet what they are; `seen`
 * NULL: no waiter runs. Another one may have taken the wake-up that came with them. */
static bool has_news(const struct loop *loop, const uint32_t *seen) {
  return seen && atomic_load(&loop->news) != *seen;
}

/* Waits for events until the time given and handles them; `until` in the past only looks. */
static int look(struct loop *loop, int64_t now, int64_t until, const uint32_t *seen) {
  struct epoll_event events[EVENTS_A_ROUND];
  struct timespec span = {0, 0};
  bool sleeps = until > now;
  if (sleeps) {
    int64_t left = until - now;
    span = (struct timespec){left / 1000000000, left % 1000000000};
    /* Dekker with loop_wake: it sets woken, then reads sleeping. And with loop_notify, which counts
     * before that. */
    atomic_store(&loop->sleeping, 1);
    sleeps = !atomic_load(&loop->woken) && !has_news(loop, seen);
  }
  if (!sleeps)
    span = (struct timespec){0, 0};
  bool for_ever = until == HAUL_FOREVER && sleeps;
  int count = wait_events(loop->epoll, events, for_ever ? NULL : &span);
  if (until > now)
    atomic_store(&loop->sleeping, 0);
  if (count <= 0)
    return 0;
  loop_lock(loop);
  int handled = dispatch(loop, events, count);
  loop_unlock(loop);
  return handled;
}

/* Whether one of them is to be polled again first. A poller's `arm` stops none. */
static bool arm_pollers(struct loop *loop) {
  bool again = false;
  list_each(item, &loop->pollers) {
    struct poller *poller = list_entry(item, struct poller, link);
    again |= poller->arm && poller->arm(poller);
  }
  return again;
}

/* Somebody looks at the descriptor between two runs. */
static bool is_polled(struct loop *loop) {
  return !loop->own_thread && atomic_load_explicit(&loop->noticed, memory_order_relaxed);
}

/* Timers and pollers, which ask for events where a sleep follows; *due becomes earlier when
 * something is due before it. */
static int turn(struct loop *loop, int64_t now, bool may_sleep, int64_t *due) {
  bool urgent = false;
  loop_lock(loop);
  int handled = fire_timers(loop, now) + run_pollers(loop, &urgent);
  if (may_sleep && !handled && arm_pollers(loop))
    *due = now;
  if (!list_empty(&loop->timers)) {
    int64_t at = list_entry(loop->timers.next, struct timer, link)->at;
    if (at < *due)
      *due = at;
  }
  loop_unlock(loop);
  if (urgent && now + URGENT_NS < *due)
    *due = now + URGENT_NS;
  return handled;
}

/* Who spins gives way where there is nothing: what it waits for may want its processor, as a thread
 * of the kernel does that works for a NIC in software, or the peer on a busy host. */
static int look_around(struct loop *loop, int64_t now, int handled) {
  handled = look(loop, now, 0, NULL) + handled;
  if (!handled)
    sched_yield();
  return handled;
}

/* Before a turn, which then sees what it is about; a later one is for the next turn, in this run
 * or, by the descriptor, in one that follows. */
static bool take_wake(struct loop *loop) {
  return atomic_load_explicit(&loop->woken, memory_order_relaxed) &&
         atomic_exchange(&loop->woken, 0);
}

static int rounds(struct loop *loop, int64_t until, const uint32_t *seen) {
  int64_t began = clock_now();
  int64_t now = began;
  for (;;) {
    loop->next_at = HAUL_FOREVER;
    bool woken = take_wake(loop);
    woken = has_news(loop, seen) || woken;
    bool spin = now - began < loop->spin_ns;
    int handled = turn(loop, now, !spin && !woken && now < until, &loop->next_at);
    int64_t sleep_until = loop->next_at < until ? loop->next_at : until;
    spin |= handled > 0;
    if (!spin)
      handled += look(loop, now, woken ? now : sleep_until, seen);
    else if (++loop->round % POLLS_A_LOOK == 0)
      handled = look_around(loop, now, handled);
    if (handled || woken || atomic_load_explicit(&loop->ended, memory_order_relaxed))
      return handled;
    if (until > now) /* else it is over anyway: the clock need not say so */
      now = clock_now();
    if (now >= until)
      return 0;
  }
}

/* Whoever polls the descriptor between two runs must see what the pollers wait for, and what only
 * time makes due. The last thing of a run: what it handled may have used an event up. */
static void set_alarm(struct loop *loop) {
  struct itimerspec at = {{0, 0}, {0, 0}};
  loop_lock(loop);
  if (arm_pollers(loop))
    loop->next_at = 0;
  loop_unlock(loop);
  if (loop->next_at != HAUL_FOREVER) {
    int64_t when = loop->next_at > 0 ? loop->next_at : 1;
    at.it_value = (struct timespec){when / 1000000000, when % 1000000000};
  }
  timerfd_settime(loop->alarm, TFD_TIMER_ABSTIME, &at, NULL);
}

static void ring(int descriptor) {
  uint64_t one = 1;
  ssize_t put = write(descriptor, &one, sizeof one);
  (void)put; /* EAGAIN: it is readable already */
}

/* Whether anybody but those inside loop_run learns of something from the descriptors. */
static bool is_watched(struct loop *loop) {
  return loop->own_thread || atomic_load(&loop->noticed);
}

static void tell_waiters(struct loop *loop) {
  atomic_fetch_add(&loop->news, 1);
  if (atomic_load(&loop->waiters))
    futex_wake(&loop->news);
}

/* `seen`: the news that were when a waiter last asked, or NULL. */
static int run(struct loop *loop, int64_t until, const uint32_t *seen) {
  uint32_t before = seen ? *seen : atomic_load(&loop->news);
  uint32_t idle = 0;
  if (!atomic_compare_exchange_strong(&loop->running, &idle, 1)) {
    atomic_fetch_add(&loop->waiters, 1);
    if (!atomic_load(&loop->ended))
      futex_wait(&loop->news, before, until);
    atomic_fetch_sub(&loop->waiters, 1);
    return 0;
  }
  int handled = rounds(loop, until, seen);
  if (is_polled(loop))
    set_alarm(loop);
  atomic_store(&loop->running, 0);
  if (atomic_load(&loop->woken) && !loop->own_thread && is_watched(loop)) /* see loop_wake */
    ring(loop->wake);
  /* A waiter may be the next to run, or may have got what it waits for. */
  if (loop->own_thread && handled)
    loop_notify(loop);
  else
    tell_waiters(loop);
  return handled + loop_run_deferred(loop);
}

int loop_run(struct loop *loop, int64_t until) {
  return run(loop, until, NULL);
}

static bool keep_waiting(struct loop *loop, int64_t until) {
  return !atomic_load_explicit(&loop->ended, memory_order_relaxed) && clock_now() < until;
}

static void sleep_for_news(struct loop *loop, bool (*done)(void *user), void *user, int64_t until) {
  /* Dekker with loop_notify: it counts up, then reads waiters. */
  atomic_fetch_add(&loop->waiters, 1);
  uint32_t seen = atomic_load(&loop->news);
  if (!done(user) && !atomic_load(&loop->ended))
    futex_wait(&loop->news, seen, until);
  atomic_fetch_sub(&loop->waiters, 1);
}

bool loop_wait(struct loop *loop, bool (*done)(void *user), bool (*help)(void *user), void *user,
               int64_t until) {
  int64_t began = loop->own_thread && loop->spin_ns ? clock_now() : 0;
  for (;;) {
    uint32_t seen = atomic_load(&loop->news); /* before `done` is asked */
    if (done(user))
      return true;
    if (!keep_waiting(loop, until))
      return done(user);
    if (help && help(user))
      continue;
    if (!loop->own_thread || loop_in_deferred(loop))
      run(loop, until, &seen);
    else if (loop->spin_ns == 0 || clock_now() - began >= loop->spin_ns)
      sleep_for_news(loop, done, user, until);
  }
}

void loop_wake(struct loop *loop) {
  /* Dekker: a runner sets sleeping or clears running, then reads woken; who asks for the descriptor
   * sets noticed, then wakes. Without either the next to run reads woken before it sleeps. */
  atomic_store(&loop->woken, 1);
  if (atomic_load(&loop->sleeping) || (!atomic_load(&loop->running) && is_watched(loop)))
    ring(loop->wake);
}

void loop_notify(struct loop *loop) {
  tell_waiters(loop);
  if (!loop->own_thread)
    loop_wake(loop);
  else if (atomic_load_explicit(&loop->noticed, memory_order_relaxed))
    ring(loop->notice);
}

int loop_descriptor(struct loop *loop) {
  if (!atomic_exchange(&loop->noticed, true) && !loop->own_thread)
    loop_wake(loop); /* the first run sets the alarm for the timers that there are */
  return loop->own_thread ? loop->notice : loop->epoll;
}

bool loop_clear_notification(struct loop *loop) {
  uint64_t count;
  return loop->own_thread && read(loop->notice, &count, sizeof count) == (ssize_t)sizeof count;
}

void loop_end(struct loop *loop) {
  atomic_store(&loop->ended, 1);
  atomic_fetch_add(&loop->news, 1);
  futex_wake(&loop->news);
  loop_wake(loop);
}

bool loop_has_ended(struct loop *loop) {
  return atomic_load(&loop->ended);
}
