/* Programs that Python makes of several computations.
 *
 * A program keeps its recipe: ports, nodes and results, as Python gave them.
 * From the recipe it is traced into a program of the client library, and again
 * when a worker has rejoined or the cluster has been restarted. All fields are
 * locked. */
#ifndef TOW_PJRT_PROGRAM_IMPL_H_
#define TOW_PJRT_PROGRAM_IMPL_H_

#include "pjrt/plugin_impl.h"
#include "pjrt/python_api.h"

typedef struct plugin_program plugin_program_t;

/* A host function on a slice, which is loaded again after a reconnect. */
typedef struct plugin_host {
    slice_entry_t *slice;   /* borrowed from the client */
    char *path, *symbol;    /* owned */
    tow_host_type_t *types; /* owned: of arguments, then of results */
    size_t argument_count, result_count;
    uint32_t time_limit_ms;
    tow_function_t *first;            /* counted: of the first loading */
    tow_function_t *function;         /* counted: of the latest one */
    const tow_signature_t *signature; /* borrowed from the first */
} plugin_host_t;

/* An argument of a port, or a call. */
typedef struct recipe_node {
    PJRT_Executable *function; /* counted; or NULL */
    plugin_host_t *host;       /* owned; or NULL. Neither: an argument */
    uint32_t port, argument;   /* of an argument */
    bool is_donated;           /* of an argument */
    char *name;                /* owned: of a call; NULL: the function's */
    tow_value_t *inputs;       /* owned: of a call, nodes of the recipe */
    size_t input_count;
} recipe_node_t;

static inline bool recipe_node_is_call(const recipe_node_t *node)
{
    return node->function != NULL || node->host != NULL;
}

/* Of a call. */
static inline const tow_signature_t *recipe_node_signature(
    const recipe_node_t *node)
{
    return node->host != NULL ? node->host->signature
                              : node->function->signature;
}

static inline slice_entry_t *recipe_node_slice(const recipe_node_t *node)
{
    return node->host != NULL ? node->host->slice : node->function->slice;
}

typedef struct recipe_result {
    bool is_given;
    tow_value_t value; /* of the recipe */
} recipe_result_t;

#define TOW_PLUGIN_NO_NODE UINT32_MAX

typedef struct plugin_port {
    plugin_program_t *program; /* borrowed */
    PJRT_Executable *stub;     /* counted */
    uint32_t index;
    uint32_t *nodes;          /* owned: of its arguments; or NO_NODE */
    recipe_result_t *results; /* owned */
    bool *is_donated;         /* owned: by argument */
    /* Among those of the whole program, in the order of the ports. */
    size_t first_argument, first_result;
} plugin_port_t;

typedef struct used_slice {
    slice_entry_t *entry; /* borrowed from the client */
    uint32_t generation;  /* when the program was traced */
} used_slice_t;

/* A call of which not all ports have been executed; or one to be reused. */
typedef struct plugin_call {
    uint64_t thread; /* that makes it; 0: to be reused */
    uint64_t number; /* among all calls of the client */
    uint32_t next_port;
    tow_program_t *traced;   /* counted; NULL: it has failed */
    tow_status_t error;      /* owned: of all its results */
    tow_array_t **arguments; /* owned array, counted items */
    size_t argument_count;   /* so far, like the next two */
    tow_array_t **results;   /* owned array, counted items: promises */
    size_t result_count;
    PJRT_Buffer **donated; /* owned array, counted items: shards */
    size_t donated_count;
} plugin_call_t;

struct plugin_program {
    /* By its number in the client's table, and by threads that use it while not
     * locked. */
    uint32_t reference_count;
    PJRT_Client *client;            /* borrowed */
    char *name;                     /* owned */
    TOW_VEC(plugin_port_t *) ports; /* owned */
    TOW_VEC(recipe_node_t) nodes;
    bool is_finished; /* and verified by the cluster */
    bool is_closed;   /* nothing more can be added */
    /* Of all ports: */
    size_t argument_count, result_count;
    size_t donated_shard_count;
    TOW_VEC(used_slice_t) slices;
    uint32_t client_generation;     /* when it was traced */
    tow_program_t *traced;          /* counted; NULL: not yet */
    TOW_VEC(plugin_call_t *) calls; /* owned */
};

/* -- program.c ------------------------------------------------------------- */

tow_status_t tow_plugin_program_create(PJRT_Client *client, const char *name,
                                       plugin_program_t **out_program)
    TOW_MUST_USE;
/* Locked. True: that was the last reference, and the caller destroys it when
 * it has left. */
bool tow_plugin_program_release(plugin_program_t *program) TOW_MUST_USE;
/* Not locked. */
void tow_plugin_program_destroy(plugin_program_t *program);
/* Locked. Its ports are ports of nothing from now on. */
void tow_plugin_program_detach(plugin_program_t *program);
/* These are locked. They take the reference to the executable on success. */
tow_status_t tow_plugin_program_add_port(plugin_program_t *program,
                                         PJRT_Executable *take_stub,
                                         uint32_t *out_port) TOW_MUST_USE;
tow_status_t tow_plugin_program_add_call(
    plugin_program_t *program, PJRT_Executable *take_function, const char *name,
    const uint32_t (*inputs)[2], size_t count, uint32_t *out_node) TOW_MUST_USE;
/* Takes the host function, on success. */
tow_status_t tow_plugin_program_add_host_call(
    plugin_program_t *program, plugin_host_t *take_host, const char *name,
    const uint32_t (*inputs)[2], size_t count, uint32_t *out_node) TOW_MUST_USE;
tow_status_t tow_plugin_program_add_argument(plugin_program_t *program,
                                             uint32_t port, uint32_t argument,
                                             bool is_donated,
                                             uint32_t *out_node) TOW_MUST_USE;
tow_status_t tow_plugin_program_add_result(plugin_program_t *program,
                                           uint32_t port, uint32_t result,
                                           tow_value_t value) TOW_MUST_USE;
/* Not locked: waits until the cluster has verified it. */
tow_status_t tow_plugin_program_finish(plugin_program_t *program) TOW_MUST_USE;
/* Locked: what it names exists in the cluster, as far as is known. */
bool tow_plugin_program_is_fresh(const plugin_program_t *program);
/* Not locked, with a reference: traces it again. Waits. */
tow_status_t tow_plugin_program_renew(plugin_program_t *program) TOW_MUST_USE;

/* Where a value is, and its type. */
typedef struct value_place {
    const slice_entry_t *slice;
    const tow_signature_t *signature;
    const tow_array_info_t *array;
} value_place_t;

/* `value` is of the recipe. */
value_place_t tow_plugin_program_place(const plugin_program_t *program,
                                       tow_value_t value);
value_place_t tow_plugin_port_result_place(const plugin_port_t *port,
                                           size_t result);
/* Unknown (no replicas) if the signature has none that we can represent. */
tow_sharding_t tow_plugin_place_sharding(const value_place_t *place);
/* The value must be transferred to be there. */
bool tow_plugin_place_differs(const value_place_t *from,
                              const value_place_t *to);

/* -- host_call.c ----------------------------------------------------------- */

/* Not locked, all three: they wait. */
tow_status_t tow_plugin_host_load(PJRT_Client *client,
                                  const towpath_host_call_t *call,
                                  plugin_host_t **out_host) TOW_MUST_USE;
/* If the cluster has disconnected since, loads it again. */
tow_status_t tow_plugin_host_reload(plugin_host_t *host) TOW_MUST_USE;
/* NULL is fine. */
void tow_plugin_host_destroy(plugin_host_t *host);

/* -- program_text.c ----------------------------------------------------- */

/* Locked. tow_free. */
tow_status_t tow_plugin_program_text(const plugin_program_t *program,
                                     char **out_text) TOW_MUST_USE;

/* -- port.c ---------------------------------------------------------------- */

/* Locked. The call of this thread that is not complete, if there is one. */
void tow_plugin_program_abandon(plugin_program_t *program);
/* Locked: all calls, for destruction. */
void tow_plugin_program_free_calls(plugin_program_t *program);

#endif /* TOW_PJRT_PROGRAM_IMPL_H_ */
