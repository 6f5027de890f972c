/* The blocking layer, shared by multi_host.c (opening, closing, peers, aborts),
 * gang.c (the members of a gang by host), errand.c (communication between a
 * calling thread and the loop), flow.c (exchanges between leaders) and
 * collective.c (the collectives).
 *
 * Exempt from the purity rule of the state machines, as collective/intra_host
 * is: threads of XLA wait here, with a lock, a futex and a short spin. */
#ifndef TOW_COLLECTIVE_MULTI_HOST_MULTI_HOST_IMPL_H_
#define TOW_COLLECTIVE_MULTI_HOST_MULTI_HOST_IMPL_H_

#include <pthread.h> /* tow-allow: threads of XLA wait in the face */
#include <stdatomic.h>

#include "base/map.h"
#include "collective/multi_host/letters.h"
#include "collective/reduce.h"

/* A process as calling threads see it. */
typedef struct place {
    uint64_t host_id;
    tow_status_t gone; /* owned: why it was removed; TOW_OK: it was not */
} place_t;

/* The envelopes that one of our devices has sent to one process and that have
 * not arrived yet. Lives as long as its tow_multi_host_t. The sender
 * increments, the loop decrements. */
typedef struct backlog {
    _Atomic size_t count;
} backlog_t;

struct tow_multi_host {
    tow_multi_host_options_t options;
    tow_letters_t *letters; /* owned; accessed by the loop only */
    tow_closed_t closed;
    tow_post_t close_post;
    unsigned spin_count; /* polls before a caller sleeps */
    pthread_mutex_t lock;
    /* Under the lock: */
    tow_map_t places;  /* by process id + 1 */
    size_t gone_count; /* number of removed ones among them */
    tow_list_t spares; /* empty envelopes of full size */
    size_t spare_count;
    tow_map_t backlogs; /* by device and process */
    /* Owned: in progress, by device. Woken when a backlog shrinks. */
    struct errand **errands;
    uint64_t change_count; /* of places: invalidates cached gangs */
    struct gang *gangs[TOW_MULTI_HOST_GANG_COUNT]; /* owned: the last used */
    uint64_t gang_use_count;
};

/* -- gang.c: the members of a gang by host --------------------------------- */

typedef struct gang_host {
    uint64_t host_id;
    size_t first; /* of its members, in `order` */
    size_t count;
    uint32_t process;   /* of its leader */
    int64_t leader;     /* the device */
    backlog_t *backlog; /* not owned: of our envelopes to that process */
} gang_host_t;

/* The members of one collective, by host: hosts in the order of their lowest
 * ranks, members of a host in the order of their ranks. */
typedef struct gang {
    size_t member_count;
    size_t host_count;
    size_t here;        /* our host */
    size_t place;       /* ours among the members of our host */
    size_t local_max;   /* members of the host with most of them */
    gang_host_t *hosts; /* owned */
    size_t *order;      /* owned: ranks, host after host */
    int64_t *locals;    /* owned: devices of our host, in rank order */
    /* Owned: all but our own, those of leaders first. */
    uint32_t *processes;
    size_t process_count;
    size_t partner_count;
    /* The key of the cache. */
    uint64_t members; /* hash */
    size_t rank;
    uint64_t change_count;
    /* Under the span's lock: */
    uint64_t last_use;
    size_t holder_count; /* the cache is one */
} gang_t;

/* Finds the gang in the cache, or computes it; then waits for processes that
 * have not been added yet. */
tow_status_t gang_open(tow_multi_host_t *span,
                       const tow_xla_collective_t *collective,
                       gang_t **out_gang) TOW_MUST_USE;
void gang_close(tow_multi_host_t *span, gang_t *gang);
/* Frees the cache. */
void gang_forget_all(tow_multi_host_t *span);

static inline const gang_host_t *gang_here(const gang_t *gang)
{
    return &gang->hosts[gang->here];
}

static inline bool gang_leads(const gang_t *gang)
{
    return gang->place == 0;
}

/* -- errand.c: communication between a calling thread and the loop --------- */

/* One operation of a calling thread. Created by the thread; freed on the loop,
 * some time after the thread has left it. Each field names the side that
 * accesses it. */
typedef struct errand {
    tow_box_t box; /* loop */
    tow_multi_host_t *span;
    tow_post_t post;
    uint32_t *processes;    /* owned: of the box */
    bool was_opened;        /* loop: opening the box was tried */
    bool is_open;           /* loop: the box is open */
    size_t under_way_count; /* loop: envelopes being sent */
    size_t device;          /* index of our device */
    size_t capacity;        /* of our envelopes, in bytes */
    size_t envelope_count;  /* thread: allocated for this errand */
    bool must_kick;         /* thread: the loop must be notified */
    const tow_xla_fiber_ops_t *fiber_ops; /* thread: of the collective */
    tow_list_t inbox;                     /* thread: letters */
    /* Futex, woken when the loop has returned something. */
    _Atomic uint32_t bell;
    _Atomic uint32_t sleeper_count;
    pthread_mutex_t lock;
    /* Under the lock: */
    bool is_posted;
    bool is_left;       /* by the thread */
    tow_list_t outbox;  /* envelopes to send */
    tow_list_t read;    /* letters to release */
    tow_list_t arrived; /* letters for the thread */
    tow_list_t spares;  /* empty envelopes for the thread */
    tow_status_t failure;
} errand_t;

tow_status_t errand_begin(tow_multi_host_t *span,
                          const tow_xla_collective_t *collective,
                          const gang_t *gang, errand_t **out_errand)
    TOW_MUST_USE;
void errand_leave(errand_t *errand);
/* An empty envelope, or NULL when too many are in flight. */
tow_envelope_t *errand_envelope(errand_t *errand);
void errand_send(errand_t *errand, tow_envelope_t *envelope,
                 const gang_host_t *host);
/* Collects the letters and envelopes that the loop has returned. */
void errand_collect(errand_t *errand);
/* The letter from this device with this number, or NULL. */
tow_letter_t *errand_find(errand_t *errand, int64_t from, uint64_t step);
void errand_release(errand_t *errand, tow_letter_t *letter);
/* Notifies the loop of sent envelopes and released letters. */
void errand_kick(errand_t *errand);
/* Waits until the loop has returned something, `heard` being the futex before
 * the last poll. Fails when the operation has failed: only operations that
 * still need something call this, so a process that leaves after doing its part
 * fails no other. */
tow_status_t errand_wait(errand_t *errand, uint32_t heard) TOW_MUST_USE;

/* -- flow.c: exchanges between leaders ------------------------------------- */

typedef struct job {
    tow_multi_host_t *span;
    const tow_xla_collective_t *collective;
    gang_t *gang;     /* held */
    errand_t *errand; /* owned; of leaders only */
    uint64_t exchange_count;
    uint64_t meeting_count;
} job_t;

/* A sequence of letters to or from one leader. Letter `index` has size_of
 * bytes, and is moved only when `after`, if any, has moved more than index -
 * lag letters. */
typedef struct flow {
    size_t host; /* the partner */
    size_t count;
    size_t done;
    const struct flow *after;
    size_t lag;
    size_t (*size_of)(const struct flow *flow, size_t index);
    /* Fills a letter to send, or processes a received one. */
    void (*move)(struct flow *flow, size_t index, uint8_t *letter);
    const void *context;
} flow_t;

/* Runs all flows to completion, concurrently. */
tow_status_t flow_run(job_t *job, flow_t *outs, size_t out_count, flow_t *ins,
                      size_t in_count) TOW_MUST_USE;

/* -- leaders.c: collectives between leaders -------------------------------- */

/* Reduces `values` of all leaders; all get the same bits. */
tow_status_t leaders_reduce(job_t *job, uint8_t *values, size_t element_count)
    TOW_MUST_USE;
/* Brings `bytes` of the leader of host `root` to all. */
tow_status_t leaders_broadcast(job_t *job, size_t root, uint8_t *bytes,
                               size_t size) TOW_MUST_USE;

/* The data exchanged with one host. */
typedef struct parcel {
    const uint8_t *send;
    size_t send_size;
    uint8_t *receive;
    size_t receive_size;
} parcel_t;

/* Exchanges with all hosts; `parcels` has one entry per host, ours is ignored.
 */
tow_status_t leaders_exchange(job_t *job, const parcel_t *parcels) TOW_MUST_USE;
/* The same, but received data is reduced into `receive`, host after host. */
tow_status_t leaders_scatter(job_t *job, const parcel_t *parcels) TOW_MUST_USE;

#endif /* TOW_COLLECTIVE_MULTI_HOST_MULTI_HOST_IMPL_H_ */
