/* SPDX-License-Identifier: MIT
 * The event loop: order of callbacks, waits and wake-ups. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/loop.h"
#include "core/sys.h"
#include "support/seams.h"

#define MS         ((int64_t)1000000)
#define LONG_AFTER (20000 * MS) /* a wait of this length is a failure */

static struct loop *open_loop(bool own_thread) {
  struct loop *loop;
  assert_works(loop_open(own_thread, 0, &loop));
  return loop;
}

static int run(struct loop *loop, int64_t nanoseconds) {
  return loop_run(loop, clock_after(clock_now(), nanoseconds));
}

static bool readable(int fd) {
  struct pollfd pollfd = {.fd = fd, .events = POLLIN};
  return poll(&pollfd, 1, 0) == 1;
}

static int new_event(unsigned count) {
  int fd = eventfd(count, EFD_CLOEXEC | EFD_NONBLOCK);
  assert_true(fd >= 0);
  return fd;
}

static int fired[8], fired_count;

struct numbered {
  struct timer timer;
  int number;
  struct loop *loop;
  struct numbered *other;
};

static void note(struct timer *timer) {
  fired[fired_count++] = ((struct numbered *)timer)->number;
}

static void set(struct loop *loop, struct numbered *timer, int64_t at) {
  loop_lock(loop);
  loop_timer_start(loop, &timer->timer, at);
  loop_unlock(loop);
}

static void make_timers(struct loop *loop, struct numbered *timers, int count,
                        void (*fire)(struct timer *)) {
  fired_count = 0;
  for (int i = 0; i < count; i++) {
    timers[i] = (struct numbered){.number = i, .loop = loop};
    timer_init(&timers[i].timer, fire);
  }
}

static void run_all(struct loop *loop, int64_t nanoseconds) {
  int64_t until = clock_after(clock_now(), nanoseconds);
  while (clock_now() < until)
    loop_run(loop, until);
  for (int i = 0; i < 16; i++) /* the machine is busy */
    loop_run(loop, HAUL_NO_WAIT);
}

static void timers_fire_in_order_and_not_before_their_time(void **state) {
  (void)state;
  static const int64_t spans[] = {30, 10, 20, 10, 0};
  static const int order[] = {4, 1, 3, 2, 0};
  struct loop *loop = open_loop(false);
  struct numbered timers[5];
  make_timers(loop, timers, 5, note);
  int64_t began = clock_now();
  for (int i = 0; i < 5; i++)
    set(loop, &timers[i], began + spans[i] * MS);
  while (fired_count < 5) {
    assert_true(clock_now() < began + LONG_AFTER);
    int before = fired_count;
    run(loop, LONG_AFTER);
    for (int i = before; i < fired_count; i++)
      assert_true(clock_now() >= timers[fired[i]].timer.at);
  }
  assert_memory_equal(fired, order, sizeof order);
  run_all(loop, 2 * MS); /* once each */
  assert_int_equal(fired_count, 5);
  loop_close(loop);
}

static void timers_that_are_due_about_the_same_time_fire_in_one_round(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  struct numbered timers[8];
  make_timers(loop, timers, 8, note);
  int64_t at = clock_now(), slack = 1000 * MS;
  at += slack - at % slack; /* the begin of a span */
  loop_lock(loop);
  for (int i = 0; i < 8; i++)
    loop_timer_start_about(loop, &timers[i].timer, at + i * 100 * MS, slack);
  for (int i = 0; i < 8; i++) {
    assert_int_equal(timers[i].timer.at, at + slack);
    loop_timer_stop(&timers[i].timer);
  }
  loop_unlock(loop);
  loop_close(loop);
}

static void a_timer_can_be_moved_and_stopped(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  struct numbered timers[3];
  make_timers(loop, timers, 3, note);
  int64_t began = clock_now();
  for (int i = 0; i < 3; i++)
    set(loop, &timers[i], began + 5 * MS);
  set(loop, &timers[0], began + 10 * MS);
  loop_timer_stop(&timers[1].timer);
  loop_timer_stop(&timers[1].timer);
  run_all(loop, 20 * MS);
  assert_int_equal(fired_count, 2);
  assert_int_equal(fired[0], 2);
  assert_int_equal(fired[1], 0);
  loop_close(loop);
}

static void note_and_stop_other(struct timer *timer) {
  note(timer);
  loop_timer_stop(&((struct numbered *)timer)->other->timer);
}

static void a_timer_may_stop_one_that_is_due_with_it(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  struct numbered timers[2];
  make_timers(loop, timers, 2, note_and_stop_other);
  timers[0].other = &timers[1];
  timers[1].other = &timers[0];
  int64_t at = clock_now();
  set(loop, &timers[0], at);
  set(loop, &timers[1], at);
  run_all(loop, 5 * MS);
  assert_int_equal(fired_count, 1);
  loop_close(loop);
}

static void note_and_go_on(struct timer *timer) {
  struct numbered *own = (struct numbered *)timer;
  note(timer);
  if (fired_count < 4)
    loop_timer_start(own->loop, timer, clock_now() + MS);
}

static void a_timer_may_set_itself_again(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  struct numbered timer;
  make_timers(loop, &timer, 1, note_and_go_on);
  int64_t began = clock_now();
  set(loop, &timer, began);
  while (fired_count < 4)
    run(loop, LONG_AFTER);
  assert_true(clock_now() >= began + 3 * MS && clock_now() < began + LONG_AFTER);
  loop_close(loop);
}

static void note_and_start_other(struct timer *timer) {
  struct numbered *own = (struct numbered *)timer;
  note(timer);
  if (fired_count == 1)
    loop_timer_start(own->loop, &own->other->timer, timer->at);
}

/* Also one that is due with it, which moves to the end of its time. */
static void a_timer_may_start_another_that_is_due(void **state) {
  (void)state;
  static const int order[] = {0, 2, 1};
  struct loop *loop = open_loop(false);
  struct numbered timers[3];
  make_timers(loop, timers, 3, note_and_start_other);
  timers[0].other = &timers[1];
  int64_t at = clock_now();
  for (int i = 0; i < 3; i++)
    set(loop, &timers[i], at);
  run_all(loop, 5 * MS);
  assert_int_equal(fired_count, 3);
  assert_memory_equal(fired, order, sizeof order);
  loop_close(loop);
}

struct seen {
  struct watch watch;
  struct loop *loop;
  struct seen *other;
  int count;
};

static void see(struct watch *watch, uint32_t events) {
  struct seen *seen = (struct seen *)watch;
  assert_true(events & EPOLLIN);
  seen->count++;
}

static void see_and_unwatch_other(struct watch *watch, uint32_t events) {
  see(watch, events);
  struct seen *seen = (struct seen *)watch;
  loop_unwatch(seen->loop, &seen->other->watch);
}

static void see_and_unwatch(struct watch *watch, uint32_t events) {
  see(watch, events);
  loop_unwatch(((struct seen *)watch)->loop, watch);
}

static void watch(struct loop *loop, struct seen *seen, int fd,
                  void (*ready)(struct watch *, uint32_t)) {
  *seen = (struct seen){.loop = loop};
  loop_lock(loop);
  assert_works(loop_watch(loop, &seen->watch, fd, EPOLLIN, ready));
  loop_unlock(loop);
}

static void ready_descriptors_are_dispatched(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  int fd = new_event(0);
  struct seen seen;
  watch(loop, &seen, fd, see);
  assert_int_equal(run(loop, MS), 0);
  assert_int_equal(eventfd_write(fd, 1), 0);
  assert_int_equal(run(loop, LONG_AFTER), 1);
  assert_int_equal(run(loop, LONG_AFTER), 1); /* level-triggered: it was not read */
  loop_lock(loop);
  loop_change(loop, &seen.watch, 0);
  loop_unlock(loop);
  assert_int_equal(run(loop, MS), 0);
  loop_lock(loop);
  loop_change(loop, &seen.watch, EPOLLIN);
  loop_unwatch(loop, &seen.watch);
  loop_unwatch(loop, &seen.watch);
  loop_unlock(loop);
  assert_int_equal(run(loop, MS), 0);
  assert_int_equal(seen.count, 2);
  close(fd);
  loop_close(loop);
}

static void an_event_fetched_before_unwatch_is_dropped(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  int fds[2] = {new_event(1), new_event(1)};
  struct seen seen[2];
  for (int i = 0; i < 2; i++)
    watch(loop, &seen[i], fds[i], see_and_unwatch_other);
  seen[0].other = &seen[1];
  seen[1].other = &seen[0];
  run_all(loop, 3 * MS);
  assert_true((seen[0].count > 0) != (seen[1].count > 0));
  for (int i = 0; i < 2; i++)
    close(fds[i]);
  loop_close(loop);
}

/* Unwatches the other watch and gives its slot to a third, whose descriptor is not ready. */
static struct seen third;
static int third_fd;

static void see_and_give_slot(struct watch *watch_, uint32_t events) {
  see(watch_, events);
  struct seen *seen = (struct seen *)watch_;
  if (third.loop)
    return;
  loop_unwatch(seen->loop, &seen->other->watch);
  third = (struct seen){.loop = seen->loop};
  assert_works(loop_watch(seen->loop, &third.watch, third_fd, EPOLLIN, see));
}

static void an_event_does_not_reach_the_next_user_of_a_slot(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  int fds[2] = {new_event(1), new_event(1)};
  struct seen seen[2];
  third = (struct seen){0};
  third_fd = new_event(0);
  for (int i = 0; i < 2; i++)
    watch(loop, &seen[i], fds[i], see_and_give_slot);
  seen[0].other = &seen[1];
  seen[1].other = &seen[0];
  run_all(loop, 3 * MS);
  assert_true(third.loop != NULL);
  assert_int_equal(third.count, 0);
  close(third_fd);
  for (int i = 0; i < 2; i++)
    close(fds[i]);
  loop_close(loop);
}

static void watches_many_descriptors(void **state) {
  (void)state;
  enum { MANY = 200 };
  struct loop *loop = open_loop(false);
  static struct seen seen[MANY];
  int fds[MANY];
  for (int i = 0; i < MANY; i++) {
    fds[i] = new_event(1);
    watch(loop, &seen[i], fds[i], see_and_unwatch);
  }
  run_all(loop, 20 * MS);
  for (int i = 0; i < MANY; i++) {
    assert_int_equal(seen[i].count, 1);
    close(fds[i]);
  }
  loop_close(loop);
}

static void a_descriptor_that_cannot_be_watched_is_an_error(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  struct watch none = {0};
  loop_lock(loop);
  assert_fails(HAUL_ESYSTEM, loop_watch(loop, &none, -1, EPOLLIN, see));
  assert_int_equal(none.slot, 0);
  loop_unwatch(loop, &none);
  loop_unlock(loop);
  loop_close(loop);
}

struct counted {
  struct poller poller;
  struct loop *loop;
  struct counted *stop, *start;
  int count;
  bool found;
  bool rests; /* after each poll */
  int armed;  /* calls of arm */
  bool early; /* the first arm reports a completion */
};

static bool count_poll(struct poller *poller) {
  struct counted *counted = (struct counted *)poller;
  counted->count++;
  if (counted->stop)
    loop_poller_stop(counted->loop, &counted->stop->poller);
  if (counted->start)
    loop_poller_start(counted->loop, &counted->start->poller, count_poll);
  counted->start = NULL;
  poller->rests = counted->rests;
  return counted->found;
}

static void make_pollers(struct loop *loop, struct counted *pollers, int count) {
  for (int i = 0; i < count; i++) {
    pollers[i] = (struct counted){.loop = loop};
    list_init(&pollers[i].poller.link);
  }
}

static void start(struct loop *loop, struct counted *pollers, int count) {
  loop_lock(loop);
  for (int i = 0; i < count; i++)
    loop_poller_start(loop, &pollers[i].poller, count_poll);
  loop_unlock(loop);
}

static void a_poller_may_stop_any_poller(void **state) {
  (void)state;
  /* Of four pollers `who` stops `whom`, for each pair, itself included. */
  for (int who = 0; who < 4; who++) {
    for (int whom = 0; whom < 4; whom++) {
      struct loop *loop = open_loop(false);
      struct counted pollers[4];
      make_pollers(loop, pollers, 4);
      pollers[who].stop = &pollers[whom];
      start(loop, pollers, 4);
      loop_run(loop, HAUL_NO_WAIT); /* one round */
      for (int i = 0; i < 4; i++)
        assert_int_equal(pollers[i].count, i == whom && whom > who ? 0 : 1);
      loop_run(loop, HAUL_NO_WAIT);
      for (int i = 0; i < 4; i++)
        assert_int_equal(pollers[i].count, (i == whom && whom > who ? 0 : 1) + (i != whom));
      loop_close(loop);
    }
  }
}

static void a_poller_may_start_another(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  struct counted pollers[2];
  make_pollers(loop, pollers, 2);
  pollers[0].start = &pollers[1];
  start(loop, pollers, 1);
  loop_run(loop, HAUL_NO_WAIT);
  loop_run(loop, HAUL_NO_WAIT);
  assert_true(pollers[1].count >= 1);
  loop_close(loop);
}

/* Idle peers cost a round nothing. */
static void a_resting_poller_is_called_again_after_loop_poll(void **state) {
  struct loop *loop = open_loop(false);
  (void)state;
  struct counted pollers[2];
  make_pollers(loop, pollers, 2);
  pollers[0].rests = true;
  start(loop, pollers, 2);
  for (int i = 0; i < 10; i++)
    loop_run(loop, 0);
  assert_int_equal(pollers[0].count, 1);
  assert_int_equal(pollers[1].count, 10);
  loop_poll(loop, &pollers[0].poller);
  loop_poll(loop, &pollers[0].poller);
  loop_run(loop, 0);
  loop_run(loop, 0);
  assert_int_equal(pollers[0].count, 2);
  loop_lock(loop);
  loop_poller_resume(loop, &pollers[0].poller);
  loop_unlock(loop);
  loop_run(loop, 0);
  assert_int_equal(pollers[0].count, 3);
  loop_lock(loop);
  loop_poller_stop(loop, &pollers[0].poller);
  loop_unlock(loop);
  loop_poll(loop, &pollers[0].poller); /* by a thread that has not noticed yet */
  loop_run(loop, 0);
  assert_int_equal(pollers[0].count, 3);
  loop_lock(loop);
  loop_poller_stop(loop, &pollers[1].poller);
  loop_unlock(loop);
  loop_close(loop);
}

/* With more pollers than a word of the loop's bits has. */
static void each_of_many_resting_pollers_is_called_when_asked_for(void **state) {
  enum { MANY = 200 };
  static struct counted pollers[MANY];
  struct loop *loop = open_loop(false);
  (void)state;
  make_pollers(loop, pollers, MANY);
  for (int i = 0; i < MANY; i++)
    pollers[i].rests = true;
  start(loop, pollers, MANY);
  loop_run(loop, 0);
  for (int i = 0; i < MANY; i++) {
    loop_poll(loop, &pollers[i].poller);
    loop_run(loop, 0);
    for (int j = 0; j < MANY; j++)
      assert_int_equal(pollers[j].count, j <= i ? 2 : 1);
  }
  loop_lock(loop);
  for (int i = 0; i < MANY; i++)
    loop_poller_stop(loop, &pollers[i].poller);
  loop_unlock(loop);
  loop_close(loop);
}

static void an_urgent_poller_keeps_the_loop_awake(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  struct counted poller;
  make_pollers(loop, &poller, 1);
  start(loop, &poller, 1);
  run(loop, 20 * MS);
  assert_in_range(poller.count, 1, 3);
  poller.poller.urgent = true;
  poller.count = 0;
  for (int tries = 0; tries < 100 && poller.count < 20; tries++) { /* this process may wait, too */
    poller.count = 0;
    run(loop, 50 * MS);
  }
  assert_true(poller.count >= 20);
  loop_close(loop);
}

static void progress_of_a_poller_ends_the_run(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  struct counted poller;
  make_pollers(loop, &poller, 1);
  poller.found = true;
  start(loop, &poller, 1);
  assert_int_equal(run(loop, LONG_AFTER), 1);
  loop_close(loop);
}

static bool count_arm(struct poller *poller) {
  struct counted *counted = (struct counted *)poller;
  counted->armed++;
  return counted->early && counted->armed == 1;
}

static void start_armed(struct loop *loop, struct counted *poller) {
  make_pollers(loop, poller, 1);
  start(loop, poller, 1);
  poller->poller.arm = count_arm;
}

static void pollers_are_armed_before_a_sleep(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  struct counted poller;
  start_armed(loop, &poller);
  run(loop, 20 * MS);
  assert_in_range(poller.armed, 1, 3);
  loop_close(loop);
}

static void a_poller_ready_when_armed_is_polled_before_the_sleep(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  struct counted poller;
  start_armed(loop, &poller);
  poller.early = true;
  run(loop, 20 * MS);
  assert_in_range(poller.armed, 2, 4);
  assert_true(poller.count >= 2);
  loop_close(loop);
}

static void pollers_are_not_armed_while_the_loop_spins(void **state) {
  (void)state;
  struct loop *loop;
  struct counted poller;
  assert_works(loop_open(false, HAUL_SPIN_ALWAYS, &loop));
  start_armed(loop, &poller);
  run(loop, 5 * MS);
  assert_true(poller.count > 1);
  assert_int_equal(poller.armed, 0);
  loop_close(loop);
  loop = open_loop(false);
  start_armed(loop, &poller);
  loop_run(loop, HAUL_NO_WAIT);
  assert_int_equal(poller.count, 1);
  assert_int_equal(poller.armed, 0);
  loop_close(loop);
}

/* A thread sleeps on the descriptor between two non-blocking runs. */
static void a_polled_descriptor_reports_events(void **state) {
  (void)state;
  struct loop *loop;
  struct counted poller;
  assert_works(loop_open(false, HAUL_SPIN_ALWAYS, &loop));
  int fd = loop_descriptor(loop);
  loop_run(loop, HAUL_NO_WAIT); /* consumes the wake-up of loop_descriptor */
  start_armed(loop, &poller);
  poller.early = true;
  poller.found = true;
  loop_run(loop, HAUL_NO_WAIT);
  assert_int_equal(poller.armed, 1);
  assert_true(readable(fd)); /* a completion may be there */
  poller.found = false;
  loop_run(loop, HAUL_NO_WAIT);
  assert_int_equal(poller.armed, 2);
  loop_close(loop);
}

struct using {
  struct watch watch;
  const struct counted *poller;
  int armed; /* not yet called */
};

static void use_up(struct watch *watch, uint32_t events) {
  struct using *using = (struct using *)watch;
  uint64_t count;
  (void)events;
  using->armed = using->poller->armed;
  assert_int_equal(read(watch->fd, &count, sizeof count), sizeof count);
}

/* An event requested before the descriptors are polled may be consumed by their callbacks. */
static void a_consumed_event_is_requested_again(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  struct counted poller;
  struct using using = {.poller = &poller, .armed = -1};
  loop_descriptor(loop);
  loop_run(loop, HAUL_NO_WAIT);
  start_armed(loop, &poller);
  int fd = new_event(1);
  loop_lock(loop);
  assert_works(loop_watch(loop, &using.watch, fd, EPOLLIN, use_up));
  loop_unlock(loop);
  loop_run(loop, HAUL_NO_WAIT);
  assert_int_not_equal(using.armed, -1);
  assert_true(poller.armed > using.armed);
  loop_close(loop);
  close(fd);
}

struct sleeper {
  pthread_t thread;
  struct loop *loop;
  int64_t until, began, took;
  _Atomic bool ready, wanted;
  bool result;
};

static void *sleep_in_run(void *argument) {
  struct sleeper *sleeper = argument;
  sleeper->began = clock_now();
  atomic_store(&sleeper->ready, true);
  loop_run(sleeper->loop, sleeper->until);
  sleeper->took = clock_now() - sleeper->began;
  return NULL;
}

static bool is_wanted(void *user) {
  return atomic_load(&((struct sleeper *)user)->wanted);
}

static void *sleep_in_wait(void *argument) {
  struct sleeper *sleeper = argument;
  int64_t began = clock_now();
  atomic_store(&sleeper->ready, true);
  sleeper->result = loop_wait(sleeper->loop, is_wanted, NULL, sleeper, sleeper->until);
  sleeper->took = clock_now() - began;
  return NULL;
}

static void send_to_sleep(struct sleeper *sleeper, struct loop *loop, void *(*how)(void *),
                          int64_t nanoseconds) {
  *sleeper = (struct sleeper){.loop = loop, .until = clock_after(clock_now(), nanoseconds)};
  assert_int_equal(pthread_create(&sleeper->thread, NULL, how, sleeper), 0);
  while (!atomic_load(&sleeper->ready))
    sched_yield();
}

static void awake(struct sleeper *sleeper) {
  pthread_join(sleeper->thread, NULL);
}

static void pause_ms(int milliseconds) {
  poll(NULL, 0, milliseconds);
}

/* Early and late on the sleeper's way to its sleep. */
static void a_wake_ends_a_sleep(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  for (int i = 0; i < 200; i++) {
    struct sleeper sleeper;
    send_to_sleep(&sleeper, loop, sleep_in_run, LONG_AFTER);
    if (i % 20 == 0)
      pause_ms(2);
    loop_wake(loop);
    awake(&sleeper);
    assert_true(sleeper.took < LONG_AFTER / 2);
  }
  loop_close(loop);
}

static void a_wake_before_the_sleep_is_not_lost(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  loop_wake(loop);
  int64_t began = clock_now();
  run(loop, LONG_AFTER);
  assert_true(clock_now() - began < LONG_AFTER / 2);
  loop_close(loop);
}

static void a_timer_set_elsewhere_shortens_a_sleep(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  struct sleeper sleeper;
  struct numbered timer;
  make_timers(loop, &timer, 1, note);
  send_to_sleep(&sleeper, loop, sleep_in_run, LONG_AFTER);
  pause_ms(2);
  set(loop, &timer, clock_now() + 5 * MS);
  awake(&sleeper);
  while (fired_count == 0) /* the wake ended the first run */
    run(loop, LONG_AFTER);
  assert_true(sleeper.took < LONG_AFTER / 2);
  loop_close(loop);
}

static void notifications_reach_waiters(void **state) {
  (void)state;
  for (int own = 0; own < 2; own++) {
    struct loop *loop = open_loop(own);
    for (int i = 0; i < 200; i++) {
      struct sleeper sleepers[2];
      for (int k = 0; k < 2; k++)
        send_to_sleep(&sleepers[k], loop, sleep_in_wait, LONG_AFTER);
      if (i % 20 == 0)
        pause_ms(2);
      for (int k = 0; k < 2; k++)
        atomic_store(&sleepers[k].wanted, true);
      loop_notify(loop);
      for (int k = 0; k < 2; k++) {
        awake(&sleepers[k]);
        assert_true(sleepers[k].result);
        assert_true(sleepers[k].took < LONG_AFTER / 2);
      }
    }
    loop_close(loop);
  }
}

struct late {
  struct loop *loop;
  int asked;
};

/* The condition becomes true right after `done` returned false, and another waiter takes the
 * wake-up. */
static bool comes_late(void *user) {
  struct late *late = user;
  if (late->asked++ == 0) {
    loop_notify(late->loop);
    loop_run(late->loop, HAUL_NO_WAIT);
    return false;
  }
  return true;
}

static void a_notification_taken_by_another_waiter_is_not_lost(void **state) {
  (void)state;
  for (int own = 0; own < 2; own++) {
    struct late late = {.loop = open_loop(own)};
    int64_t began = clock_now();
    assert_true(loop_wait(late.loop, comes_late, NULL, &late, clock_after(began, LONG_AFTER)));
    assert_true(clock_now() - began < LONG_AFTER / 2);
    loop_close(late.loop);
  }
}

static void a_wait_ends_at_its_deadline(void **state) {
  (void)state;
  for (int own = 0; own < 2; own++) {
    struct loop *loop = open_loop(own);
    struct sleeper sleepers[3];
    for (int k = 0; k < 3; k++)
      send_to_sleep(&sleepers[k], loop, sleep_in_wait, 20 * MS);
    for (int k = 0; k < 3; k++) {
      awake(&sleepers[k]);
      assert_false(sleepers[k].result);
      assert_in_range(sleepers[k].took, 0, LONG_AFTER / 2);
    }
    loop_close(loop);
  }
}

/* One thread runs the loop; the other thread's deadline holds, too. */
static void a_second_runner_keeps_its_deadline(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  struct sleeper first, second;
  send_to_sleep(&first, loop, sleep_in_run, LONG_AFTER);
  pause_ms(5);
  send_to_sleep(&second, loop, sleep_in_run, 10 * MS);
  awake(&second);
  assert_true(second.began + second.took >= second.until); /* it may start late on a slow machine */
  assert_true(second.took < LONG_AFTER / 2);
  loop_wake(loop);
  awake(&first);
  loop_close(loop);
}

/* The runner's deadline comes first, so the other waiter must take over. */
static void a_waiter_takes_over_from_a_leaving_runner(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  struct sleeper first, second;
  int fd = new_event(0);
  struct seen seen;
  send_to_sleep(&first, loop, sleep_in_run, 20 * MS);
  pause_ms(5);
  send_to_sleep(&second, loop, sleep_in_wait, LONG_AFTER);
  awake(&first);
  pause_ms(5);
  watch(loop, &seen, fd, see_and_unwatch);
  assert_int_equal(eventfd_write(fd, 1), 0);
  for (int i = 0; i < 1000 && !readable(fd); i++)
    pause_ms(1);
  pause_ms(20);
  atomic_store(&second.wanted, true);
  loop_notify(loop);
  awake(&second);
  assert_true(second.result);
  assert_int_equal(seen.count, 1);
  close(fd);
  loop_close(loop);
}

static int help_count;

static bool help_thrice(void *user) {
  if (++help_count == 3)
    atomic_store(&((struct sleeper *)user)->wanted, true);
  return help_count <= 3;
}

static void a_waiter_helps_instead_of_sleeping(void **state) {
  (void)state;
  for (int own = 0; own < 2; own++) {
    struct loop *loop = open_loop(own);
    struct sleeper self = {0};
    help_count = 0;
    assert_true(loop_wait(loop, is_wanted, help_thrice, &self, clock_now() + LONG_AFTER));
    assert_int_equal(help_count, 3);
    loop_close(loop);
  }
}

static void loop_end_ends_all_waits(void **state) {
  (void)state;
  for (int own = 0; own < 2; own++) {
    struct loop *loop = open_loop(own);
    struct sleeper runner, waiter;
    send_to_sleep(&runner, loop, sleep_in_run, LONG_AFTER);
    pause_ms(2);
    send_to_sleep(&waiter, loop, sleep_in_wait, LONG_AFTER);
    pause_ms(2);
    loop_end(loop);
    awake(&runner);
    awake(&waiter);
    assert_false(waiter.result);
    int64_t began = clock_now();
    loop_run(loop, began + LONG_AFTER);
    loop_wait(loop, is_wanted, NULL, &waiter, began + LONG_AFTER);
    assert_true(clock_now() - began < LONG_AFTER / 2);
    loop_close(loop);
  }
}

static void the_descriptor_is_readable_when_a_run_finds_work(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  int fd = loop_descriptor(loop), event = new_event(0);
  struct seen seen;
  loop_run(loop, HAUL_NO_WAIT);
  assert_false(readable(fd));

  watch(loop, &seen, event, see_and_unwatch);
  assert_false(readable(fd));
  assert_int_equal(eventfd_write(event, 1), 0);
  assert_true(readable(fd));
  assert_int_equal(run(loop, LONG_AFTER), 1);
  loop_run(loop, HAUL_NO_WAIT);
  assert_false(readable(fd));

  loop_wake(loop);
  assert_true(readable(fd));
  loop_run(loop, HAUL_NO_WAIT);
  loop_run(loop, HAUL_NO_WAIT);
  assert_false(readable(fd));
  close(event);
  loop_close(loop);
}

static bool count_and_wake(struct poller *poller) {
  struct counted *counted = (struct counted *)poller;
  if (counted->count++ == 0) /* this comes too late for the current callbacks */
    loop_wake(counted->loop);
  return false;
}

static void a_wake_runs_callbacks_or_signals_the_descriptor(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    struct loop *loop = open_loop(false);
    int fd = loop_descriptor(loop);
    struct counted poller;
    loop_run(loop, HAUL_NO_WAIT);
    make_pollers(loop, &poller, 1);
    loop_lock(loop);
    loop_poller_start(loop, &poller.poller, count_and_wake);
    loop_unlock(loop);
    loop_run(loop, i == 0 ? HAUL_NO_WAIT : clock_now() + LONG_AFTER);
    assert_true(poller.count > 1 || readable(fd));
    loop_run(loop, HAUL_NO_WAIT);
    assert_true(poller.count > 1);
    loop_close(loop);
  }
}

static void the_descriptor_is_readable_when_a_timer_is_due(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  int fd = loop_descriptor(loop);
  struct numbered timer;
  make_timers(loop, &timer, 1, note);
  set(loop, &timer, clock_now() + 20 * MS);
  loop_run(loop, HAUL_NO_WAIT);
  loop_run(loop, HAUL_NO_WAIT); /* the first run consumed the new timer's wake */
  assert_false(readable(fd));
  struct pollfd pollfd = {.fd = fd, .events = POLLIN};
  assert_int_equal(poll(&pollfd, 1, 20000), 1);
  while (fired_count == 0) {
    assert_true(clock_now() < timer.timer.at + LONG_AFTER);
    loop_run(loop, HAUL_NO_WAIT);
  }
  loop_run(loop, HAUL_NO_WAIT);
  assert_false(readable(fd));
  loop_close(loop);
}

static void with_an_own_thread_the_descriptor_reports_notifications(void **state) {
  (void)state;
  struct loop *loop = open_loop(true);
  loop_notify(loop); /* no loop_descriptor yet */
  int fd = loop_descriptor(loop);
  assert_false(loop_clear_notification(loop));
  assert_false(readable(fd));
  loop_notify(loop);
  loop_notify(loop);
  assert_true(readable(fd));
  assert_true(loop_clear_notification(loop));
  assert_false(readable(fd));
  assert_false(loop_clear_notification(loop));
  loop_close(loop);
}

/* Calls at the times of a caller that polls without a pause; the first one in a loop has none
 * before it. */
static void assist(struct loop *loop, int calls) {
  static int64_t now = 1000 * MS;
  for (int i = 0; i < calls; i++)
    loop_assist(loop, now += 3000);
}

static void a_caller_that_polls_runs_descriptors_and_pollers(void **state) {
  (void)state;
  struct loop *loop = open_loop(true);
  int fd = new_event(1);
  struct seen seen;
  struct counted poller;
  watch(loop, &seen, fd, see);
  make_pollers(loop, &poller, 1);
  start(loop, &poller, 1);
  loop_descriptor(loop);
  assist(loop, 2);
  assert_int_equal(seen.count, 1);
  assert_int_equal(poller.count, 1);
  assert_true(loop_clear_notification(loop)); /* others may wait for what it found */
  close(fd);
  loop_close(loop);
}

static void a_caller_that_polls_now_and_then_leaves_it_to_the_thread(void **state) {
  (void)state;
  struct loop *loop = open_loop(true);
  int fd = new_event(1);
  struct seen seen;
  watch(loop, &seen, fd, see);
  for (int i = 1; i < 100; i++)
    loop_assist(loop, i * MS);
  assert_int_equal(seen.count, 0);
  close(fd);
  loop_close(loop);
}

static void a_loop_without_a_thread_is_not_assisted(void **state) {
  (void)state;
  struct loop *loop = open_loop(false);
  int fd = new_event(1);
  struct seen seen;
  watch(loop, &seen, fd, see);
  assist(loop, 10);
  assert_int_equal(seen.count, 0);
  close(fd);
  loop_close(loop);
}

/* The completion may have used up the event that the thread's sleep relies on. */
static void a_caller_that_polls_arms_the_pollers_again(void **state) {
  (void)state;
  struct loop *loop = open_loop(true);
  struct counted poller;
  start_armed(loop, &poller);
  assist(loop, 2);
  assert_int_equal(poller.armed, 0);
  poller.found = true;
  assist(loop, 1);
  assert_int_equal(poller.armed, 1);
  loop_close(loop);
}

struct worker {
  struct watch watch;
  struct counted poller;
  bool has_work;
};

static void give_work(struct watch *watch, uint32_t events) {
  struct worker *worker = (struct worker *)watch;
  (void)events;
  worker->has_work = true;
}

static bool do_work(struct poller *poller) {
  struct worker *worker = list_entry(poller, struct worker, poller.poller);
  bool had = worker->has_work;
  worker->has_work = false;
  return had;
}

/* The thread sleeps on, as its event is gone. */
static void an_event_that_leaves_work_for_a_poller_has_it_done(void **state) {
  (void)state;
  struct loop *loop = open_loop(true);
  int fd = new_event(1);
  struct worker worker = {.has_work = false};
  list_init(&worker.poller.poller.link);
  loop_lock(loop);
  assert_works(loop_watch(loop, &worker.watch, fd, EPOLLIN, give_work));
  loop_poller_start(loop, &worker.poller.poller, do_work);
  loop_unlock(loop);
  assist(loop, 2);
  assert_false(worker.has_work);
  close(fd);
  loop_close(loop);
}

struct called {
  struct deferred deferred;
  _Atomic bool done;
};

static void call(struct deferred *deferred) {
  atomic_store(&((struct called *)deferred)->done, true);
}

static void *run_to_the_end(void *argument) {
  struct loop *loop = argument;
  while (!loop_has_ended(loop))
    loop_run(loop, HAUL_FOREVER);
  return NULL;
}

/* Whether the thread sleeps on its descriptors or takes a nap. */
static void a_caller_that_polls_takes_no_wake_up_of_the_thread(void **state) {
  (void)state;
  struct loop *loop = open_loop(true);
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, run_to_the_end, loop), 0);
  for (int i = 0; i < 3000; i++) {
    struct called called = {.deferred.run = call};
    int64_t until = clock_after(clock_now(), LONG_AFTER);
    if (i % 100 == 0)
      pause_ms(1);
    loop_defer(loop, &called.deferred);
    while (!atomic_load(&called.done) && clock_now() < until)
      loop_assist(loop, clock_now());
    assert_true(atomic_load(&called.done));
  }
  loop_end(loop);
  pthread_join(thread, NULL);
  loop_close(loop);
}

static void the_thread_takes_over_from_a_caller_that_stopped_polling(void **state) {
  (void)state;
  struct loop *loop = open_loop(true);
  int fd = new_event(0);
  struct seen seen;
  pthread_t thread;
  watch(loop, &seen, fd, see_and_unwatch);
  assert_int_equal(pthread_create(&thread, NULL, run_to_the_end, loop), 0);
  for (int64_t until = clock_after(clock_now(), MS); clock_now() < until;)
    loop_assist(loop, clock_now());
  assert_int_equal(eventfd_write(fd, 1), 0);
  int64_t until = clock_after(clock_now(), LONG_AFTER);
  for (int count = 0; count == 0;) {
    pause_ms(1);
    loop_lock(loop);
    count = seen.count;
    loop_unlock(loop);
    assert_true(clock_now() < until);
  }
  loop_end(loop);
  pthread_join(thread, NULL);
  close(fd);
  loop_close(loop);
}

static void a_failed_open_leaks_nothing(void **state) {
  (void)state;
  struct rlimit limit, few;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
  unsigned before = open_descriptors();
  for (rlim_t more = 0; more < 3; more++) {
    struct loop *loop = NULL;
    int lowest = dup(0);
    close(lowest);
    few = (struct rlimit){(rlim_t)lowest + more, limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    int code = loop_open(more % 2, 0, &loop);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_fails(HAUL_ELIMIT, code);
    assert_int_equal(open_descriptors(), before);
  }
  struct loop *loop = NULL;
  int status;
  for (unsigned n = 1; seams_refuse(n), status = loop_open(false, 0, &loop), seams_restore(); n++) {
    assert_fails(HAUL_ENOMEM, status);
    assert_int_equal(open_descriptors(), before);
  }
  assert_works(status);
  loop_close(loop);
  assert_int_equal(open_descriptors(), before);
}

static void closing_null_does_nothing(void **state) {
  (void)state;
  loop_close(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(timers_fire_in_order_and_not_before_their_time),
      cmocka_unit_test(timers_that_are_due_about_the_same_time_fire_in_one_round),
      cmocka_unit_test(a_timer_can_be_moved_and_stopped),
      cmocka_unit_test(a_timer_may_stop_one_that_is_due_with_it),
      cmocka_unit_test(a_timer_may_set_itself_again),
      cmocka_unit_test(a_timer_may_start_another_that_is_due),
      cmocka_unit_test(ready_descriptors_are_dispatched),
      cmocka_unit_test(an_event_fetched_before_unwatch_is_dropped),
      cmocka_unit_test(an_event_does_not_reach_the_next_user_of_a_slot),
      cmocka_unit_test(watches_many_descriptors),
      cmocka_unit_test(a_descriptor_that_cannot_be_watched_is_an_error),
      cmocka_unit_test(a_poller_may_stop_any_poller),
      cmocka_unit_test(a_poller_may_start_another),
      cmocka_unit_test(a_resting_poller_is_called_again_after_loop_poll),
      cmocka_unit_test(each_of_many_resting_pollers_is_called_when_asked_for),
      cmocka_unit_test(an_urgent_poller_keeps_the_loop_awake),
      cmocka_unit_test(progress_of_a_poller_ends_the_run),
      cmocka_unit_test(pollers_are_armed_before_a_sleep),
      cmocka_unit_test(a_poller_ready_when_armed_is_polled_before_the_sleep),
      cmocka_unit_test(pollers_are_not_armed_while_the_loop_spins),
      cmocka_unit_test(a_polled_descriptor_reports_events),
      cmocka_unit_test(a_consumed_event_is_requested_again),
      cmocka_unit_test(a_wake_ends_a_sleep),
      cmocka_unit_test(a_wake_before_the_sleep_is_not_lost),
      cmocka_unit_test(a_timer_set_elsewhere_shortens_a_sleep),
      cmocka_unit_test(notifications_reach_waiters),
      cmocka_unit_test(a_notification_taken_by_another_waiter_is_not_lost),
      cmocka_unit_test(a_wait_ends_at_its_deadline),
      cmocka_unit_test(a_second_runner_keeps_its_deadline),
      cmocka_unit_test(a_waiter_takes_over_from_a_leaving_runner),
      cmocka_unit_test(a_waiter_helps_instead_of_sleeping),
      cmocka_unit_test(loop_end_ends_all_waits),
      cmocka_unit_test(the_descriptor_is_readable_when_a_run_finds_work),
      cmocka_unit_test(a_wake_runs_callbacks_or_signals_the_descriptor),
      cmocka_unit_test(the_descriptor_is_readable_when_a_timer_is_due),
      cmocka_unit_test(with_an_own_thread_the_descriptor_reports_notifications),
      cmocka_unit_test(a_caller_that_polls_runs_descriptors_and_pollers),
      cmocka_unit_test(a_caller_that_polls_now_and_then_leaves_it_to_the_thread),
      cmocka_unit_test(a_loop_without_a_thread_is_not_assisted),
      cmocka_unit_test(a_caller_that_polls_arms_the_pollers_again),
      cmocka_unit_test(an_event_that_leaves_work_for_a_poller_has_it_done),
      cmocka_unit_test(a_caller_that_polls_takes_no_wake_up_of_the_thread),
      cmocka_unit_test(the_thread_takes_over_from_a_caller_that_stopped_polling),
      cmocka_unit_test(a_failed_open_leaks_nothing),
      cmocka_unit_test(closing_null_does_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
