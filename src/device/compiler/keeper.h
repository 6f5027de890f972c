/* What keeps one child process: a thread that starts it, talks to it and waits
 * for it, and the orders that the loop gives that thread. Compilers and host
 * functions have children, and each child a keeper.
 *
 * The loop inits, starts, orders and joins; the rest is for the keeper's
 * thread. */
#ifndef TOW_DEVICE_COMPILER_KEEPER_H_
#define TOW_DEVICE_COMPILER_KEEPER_H_

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "device/compiler/process.h"

/* Bits: a job may be cancelled before the thread has seen it. */
enum {
    TOW_KEEPER_WORK = 1,
    TOW_KEEPER_CANCEL = 2, /* the job that runs, if it still does */
    TOW_KEEPER_QUIT = 4,
    TOW_KEEPER_TELL = 8, /* there is something for the job that runs */
};

typedef struct tow_keeper {
    pthread_t thread;
    bool has_thread; /* the loop's */
    int wake_fd;     /* an eventfd: look at `orders` */
    /* Set by the loop, taken by the thread. */
    _Atomic(unsigned) orders;
    child_process_t process; /* the thread's */
} tow_keeper_t;

void tow_keeper_init(tow_keeper_t *keeper);
/* Its thread, if there was one, has been joined. */
void tow_keeper_deinit(tow_keeper_t *keeper);

/* Unless it has a thread: starts one, with all signals blocked, because those of
 * the process are for threads that expect them. */
tow_status_t tow_keeper_start(tow_keeper_t *keeper, void *(*run)(void *context),
                              void *context) TOW_MUST_USE;
/* One of the bits; the thread must be there. */
void tow_keeper_order(tow_keeper_t *keeper, unsigned order);
/* Blocks until the thread has ended: call it when that has been told. */
void tow_keeper_join(tow_keeper_t *keeper);

/* -- The thread's ------------------------------------------------------------ */

/* Sleeps until there is work or it is time to quit, and returns the orders; or
 * 0 if the child has ended or spoken out of turn, and must go. */
unsigned tow_keeper_await(tow_keeper_t *keeper);

/* What one sleep brought while a job runs; nothing is possible too. */
typedef struct tow_keeper_news {
    bool is_late;      /* the deadline has passed; nothing else was looked at */
    bool is_cancelled; /* by the loop */
    bool is_told;      /* by the loop: TOW_KEEPER_TELL */
    bool has_message;  /* the socket can be read or, if asked for, written */
    bool has_ended;    /* though others may hold its end of the socket */
} tow_keeper_news_t;

int64_t tow_keeper_now_ns(void);
/* Sleeps; what the child says beside its answers is kept. `socket_events` are
 * those of poll. */
tow_keeper_news_t tow_keeper_follow(tow_keeper_t *keeper, int64_t deadline_ns,
                                    short socket_events);

#endif /* TOW_DEVICE_COMPILER_KEEPER_H_ */
