/* The blocking face: what span.c (life, peers, aborts), gang.c (who is where),
 * errand.c (one thread's dealings with the loop), flow.c (exchanges between
 * leaders) and collective.c (the collectives) share.
 *
 * Exempt from the rule of the state machines, as collective/host is: threads of
 * others wait here, with a lock, a futex and a short spin. */
#ifndef TOW_COLLECTIVE_SPAN_SPAN_IMPL_H_
#define TOW_COLLECTIVE_SPAN_SPAN_IMPL_H_

#include <pthread.h> /* tow-allow: threads of XLA wait in the face */
#include <stdatomic.h>

#include "base/map.h"
#include "collective/reduce.h"
#include "collective/span/letters.h"

/* What a calling thread must know of a process. */
typedef struct place {
    uint64_t host_id;
    tow_status_t gone; /* owned: why it was removed; TOW_OK: it is there */
} place_t;

/* What one of our devices has sent to one process and is not there yet. Lives as
 * long as the span. The sender counts up, the loop down. */
typedef struct backlog {
    _Atomic size_t count;
} backlog_t;

struct tow_span {
    tow_span_options_t options;
    tow_letters_t *letters; /* owned; the loop's alone */
    tow_closed_t closed;
    tow_post_t close_post;
    unsigned spin_count; /* looks before a caller sleeps */
    pthread_mutex_t lock;
    /* Under the lock: */
    tow_map_t places;  /* by process id + 1 */
    size_t gone_count; /* of them, those that were removed */
    tow_list_t spares; /* empty envelopes of full size */
    size_t spare_count;
    tow_map_t backlogs; /* by device and process */
    /* Owned: those that are under way, by device. They are rung when a backlog
     * shrinks. */
    struct errand **errands;
    uint64_t change_count; /* of places: gangs made before are stale */
    struct gang *gangs[TOW_SPAN_GANG_COUNT]; /* owned: the last used */
    uint64_t gang_use_count;
};

/* -- gang.c: who is where ------------------------------------------------------ */

typedef struct gang_host {
    uint64_t host_id;
    size_t first; /* of its members, in `order` */
    size_t count;
    uint32_t process;   /* of its leader */
    int64_t leader;     /* the device */
    backlog_t *backlog; /* lent by the span: ours, of what we send there */
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
    /* What it is found again by. */
    uint64_t members; /* hash */
    size_t rank;
    uint64_t change_count;
    /* Under the span's lock: */
    uint64_t last_use;
    size_t holder_count; /* the span is one, while it keeps it */
} gang_t;

/* Finds it among those used last, or works it out: then waits for processes that
 * have not been added yet. */
tow_status_t gang_open(tow_span_t *span, const tow_xla_collective_t *collective,
                       gang_t **out_gang) TOW_MUST_USE;
void gang_close(tow_span_t *span, gang_t *gang);
/* When the span ends. */
void gang_forget_all(tow_span_t *span);

static inline const gang_host_t *gang_here(const gang_t *gang)
{
    return &gang->hosts[gang->here];
}

static inline bool gang_leads(const gang_t *gang)
{
    return gang->place == 0;
}

/* -- errand.c: one thread's dealings with the loop ----------------------------- */

/* Made by the calling thread; freed on the loop, some time after the thread has
 * left it. */
typedef struct errand {
    tow_box_t box; /* the loop's */
    tow_span_t *span;
    tow_post_t post;
    uint32_t *processes;    /* owned: the box's */
    bool was_opened;        /* the loop's: the box has been, or was refused */
    bool is_open;           /* the loop's: the box is */
    size_t under_way_count; /* the loop's: envelopes in the letters */
    size_t device;          /* ours: an index */
    size_t capacity;        /* of our envelopes, in bytes */
    size_t envelope_count;  /* the thread's: made for this errand */
    bool must_kick;         /* the thread's: the loop has not been told all */
    const tow_xla_turns_t *turns; /* the thread's: of the collective */
    tow_list_t inbox;             /* the thread's: letters */
    /* Rings when something came back from the loop. */
    _Atomic uint32_t bell;
    _Atomic uint32_t sleeper_count;
    pthread_mutex_t lock;
    /* Under the lock: */
    bool is_posted;
    bool is_left;       /* the thread has gone */
    tow_list_t outbox;  /* envelopes to send */
    tow_list_t read;    /* letters to release */
    tow_list_t arrived; /* letters for the thread */
    tow_list_t spares;  /* empty envelopes for the thread */
    tow_status_t failure;
} errand_t;

tow_status_t errand_begin(tow_span_t *span,
                          const tow_xla_collective_t *collective,
                          const gang_t *gang, errand_t **out_errand)
    TOW_MUST_USE;
void errand_leave(errand_t *errand);
/* An empty envelope, or NULL when enough are under way. */
tow_envelope_t *errand_envelope(errand_t *errand);
void errand_send(errand_t *errand, tow_envelope_t *envelope,
                 const gang_host_t *host);
/* Takes in what has come. */
void errand_collect(errand_t *errand);
/* The letter from this device with this number, or NULL. */
tow_letter_t *errand_find(errand_t *errand, int64_t from, uint64_t step);
void errand_release(errand_t *errand, tow_letter_t *letter);
/* Hands what was sent and released to the loop. */
void errand_kick(errand_t *errand);
/* Waits until something has come, `heard` being the bell before we looked. Fails
 * when the operation has: so it does only when it lacks something, and a process
 * that leaves when it has done its part harms nobody. */
tow_status_t errand_wait(errand_t *errand, uint32_t heard) TOW_MUST_USE;

/* -- flow.c: exchanges between leaders ------------------------------------------ */

typedef struct job {
    tow_span_t *span;
    const tow_xla_collective_t *collective;
    gang_t *gang;     /* held */
    errand_t *errand; /* owned; the leader's alone */
    uint64_t exchange_count;
    uint64_t meeting_count;
} job_t;

/* A row of letters to or from one leader. Letter `index` has size_of bytes, and
 * is moved only when `after`, if there is one, has moved more than index - lag
 * letters. */
typedef struct flow {
    size_t host; /* the partner */
    size_t count;
    size_t done;
    const struct flow *after;
    size_t lag;
    size_t (*size_of)(const struct flow *flow, size_t index);
    /* Fills a letter to send, or works off one that came. */
    void (*move)(struct flow *flow, size_t index, uint8_t *letter);
    const void *context;
} flow_t;

/* Runs all flows to their ends, side by side. */
tow_status_t flow_run(job_t *job, flow_t *outs, size_t out_count, flow_t *ins,
                      size_t in_count) TOW_MUST_USE;

/* -- leaders.c: what leaders do with each other ---------------------------------- */

/* Combines `values` of all leaders; all get the same bits. */
tow_status_t leaders_reduce(job_t *job, uint8_t *values, size_t element_count)
    TOW_MUST_USE;
/* Brings `bytes` of the leader of host `root` to all. */
tow_status_t leaders_broadcast(job_t *job, size_t root, uint8_t *bytes,
                               size_t size) TOW_MUST_USE;

/* What goes to and comes from one host. */
typedef struct parcel {
    const uint8_t *send;
    size_t send_size;
    uint8_t *receive;
    size_t receive_size;
} parcel_t;

/* Exchanges with all hosts; `parcels` has one a host, ours is not looked at. */
tow_status_t leaders_exchange(job_t *job, const parcel_t *parcels) TOW_MUST_USE;
/* The same, but what comes is combined into `receive`, host after host. */
tow_status_t leaders_scatter(job_t *job, const parcel_t *parcels) TOW_MUST_USE;

#endif /* TOW_COLLECTIVE_SPAN_SPAN_IMPL_H_ */
