/* Enrolment: a worker asks the controller for its name and its process number,
 * before it opens its devices, whose ids contain the number.
 *
 *     WAITING -> DIALLING -> ASKING -> ENROLLED
 *
 * The controller reserves both for as long as this session is open, so the owner
 * closes the enrolment when the worker has joined (worker.h), from the same env.
 * While the controller does not answer, or refuses, it is asked again, for ever;
 * the owner decides when to give up. If the session ends after the answer, the
 * reservation is gone, and the controller decides again when the worker joins.
 *
 * The name of the env should be unique: sessions of another process with the
 * same name would end when this one dials.
 *
 * A state machine over tow_env. */
#ifndef TOW_WORKER_ENROL_H_
#define TOW_WORKER_ENROL_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "env/env.h"
#include "session/session.h"
#include "wire/message.h"

typedef struct tow_enrolment tow_enrolment_t;

typedef struct tow_enrolled {
    char name[TOW_WORKER_NAME_MAX + 1];
    uint32_t process;
} tow_enrolled_t;

/* Both run in turns of the env, and must not close the enrolment. */
typedef struct tow_enrol_hooks {
    /* Once. `enrolled` is lent. */
    void (*enrolled)(void *context, const tow_enrolled_t *enrolled);
    /* The controller, or the process at its address, refuses, or does not
     * answer (UNAVAILABLE). `cause` is lent. */
    void (*failed)(void *context, tow_status_t cause);
    void *context; /* lent */
} tow_enrol_hooks_t;

typedef struct tow_enrol_options {
    const char *controller; /* its address; copied */
    const char *host;       /* this machine's name; copied */
    const char *name;       /* copied; NULL: the controller chooses */
    bool has_process;       /* false: the controller chooses */
    uint32_t process;
    tow_session_limits_t limits;
    tow_enrol_hooks_t hooks;
} tow_enrol_options_t;

/* Starts dialling. INVALID_ARGUMENT for an invalid address or too long a name. */
tow_status_t tow_enrolment_open(tow_env_t *env,
                                const tow_enrol_options_t *options,
                                tow_enrolment_t **out_enrolment) TOW_MUST_USE;
/* Gives the reservation up, unless the worker has joined; frees the enrolment and
 * calls `closed`. No hook runs after this call. */
void tow_enrolment_close(tow_enrolment_t *enrolment, tow_closed_t closed);
/* After a simulated crash: frees it and calls nobody. NULL is allowed. */
void tow_enrolment_discard(tow_enrolment_t *enrolment);

#endif /* TOW_WORKER_ENROL_H_ */
