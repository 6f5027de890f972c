/* `tow lower`: prints a program after a lowering pass, without a cluster. */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "tool/command.h"
#include "tool/lower_print.h"
#include "tool/text_file.h"

#define FILE_BYTES_MAX ((size_t)64 << 20)
#define NO_WORKER      UINT64_MAX

typedef enum pass {
    PASS_VERIFY,
    PASS_INSERT,
    PASS_PLACE,
    PASS_SPLIT,
    PASS_COUNT,
} pass_t;

static const char *const pass_names[PASS_COUNT] = {"verify", "insert", "place",
                                                   "split"};

typedef struct lower_arguments {
    const char *file; /* of argv */
    pass_t after;
    uint64_t worker; /* NO_WORKER: all */
    bool json;
    bool memory; /* instead of the program */
} lower_arguments_t;

static error_t parse_pass(lower_arguments_t *a, const char *text,
                          const struct argp_state *state)
{
    for (int i = 0; i < PASS_COUNT; i++)
        if (strcmp(text, pass_names[i]) == 0) {
            a->after = (pass_t)i;
            return 0;
        }
    argp_error(state, "--after takes verify, insert, place or split, not '%s'",
               text);
    return EINVAL;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    lower_arguments_t *a = state->input;
    switch (key) {
    case 'a': return parse_pass(a, argument, state);
    case 'j': a->json = true; return 0;
    case 'm': a->memory = true; return 0;
    case 'w':
        a->worker =
            tow_command_number(state, "worker", argument, 0, UINT16_MAX);
        return 0;
    case ARGP_KEY_ARG:
        if (a->file != NULL)
            argp_error(state, "unexpected argument '%s': one file per run",
                       argument);
        a->file = argument;
        return 0;
    case ARGP_KEY_END:
        if (a->file == NULL)
            argp_error(state, "name a program file, or - for standard input");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* -- Passes ------------------------------------------------------------------- */

static tow_status_t show_program(const lower_arguments_t *a,
                                 const tow_lower_header_t *header,
                                 const tow_graph_t *program)
{
    if (a->json) {
        tow_lower_json_program(header, pass_names[a->after], program);
        return TOW_OK;
    }
    if (a->after == PASS_PLACE) tow_lower_print_places(header);
    return tow_lower_print_program(program);
}

static tow_status_t split_worker(const lower_arguments_t *a,
                                 tow_lower_header_t *header,
                                 const tow_graph_t *program, uint32_t process)
{
    tow_lowered_t *lowered;
    header->scope.process = process;
    TOW_RETURN_IF_ERROR(tow_graph_lower(program, &header->scope, &lowered));
    if (a->json)
        tow_lower_json_worker(header, program, lowered);
    else
        tow_lower_print_worker(header, program, lowered);
    tow_lowered_destroy(lowered);
    return TOW_OK;
}

static tow_status_t split(const lower_arguments_t *a,
                          tow_lower_header_t *header,
                          const tow_graph_t *program)
{
    bool found = false;
    for (size_t i = 0; i < header->processes.count; i++) {
        const uint32_t process = header->processes.items[i];
        if (a->worker != NO_WORKER && a->worker != process) continue;
        found = true;
        TOW_RETURN_IF_ERROR(split_worker(a, header, program, process));
    }
    if (found) return TOW_OK;
    return TOW_ERROR(TOW_NOT_FOUND, "no slice has devices of process %llu",
                     (unsigned long long)a->worker);
}

static tow_status_t lower(const lower_arguments_t *a,
                          tow_lower_header_t *header, tow_graph_t **program)
{
    const tow_graph_scope_t *scope = &header->scope.program;
    TOW_RETURN_IF_ERROR(tow_graph_verify_loose(*program, scope));
    if (a->after == PASS_VERIFY) return show_program(a, header, *program);
    header->scope.client_node_count = (uint32_t)tow_graph_node_count(*program);
    tow_graph_t *complete;
    TOW_RETURN_IF_ERROR(tow_graph_insert_transfers(*program, scope, &complete));
    tow_graph_destroy(*program);
    *program = complete;
    TOW_RETURN_IF_ERROR(tow_graph_verify(*program, scope));
    if (a->memory)
        return tow_lower_show_memory(header, *program,
                                     a->json ? TOW_LOWER_JSON : TOW_LOWER_TEXT);
    if (a->after == PASS_INSERT) return show_program(a, header, *program);
    TOW_RETURN_IF_ERROR(tow_lower_header_place(header, *program));
    if (a->after == PASS_PLACE) return show_program(a, header, *program);
    return split(a, header, *program);
}

static tow_status_t lower_file(const lower_arguments_t *a)
{
    tow_text_t text = {0};
    tow_lower_header_t header = {0};
    tow_graph_t *program = NULL;
    tow_status_t status = tow_text_file_read(a->file, FILE_BYTES_MAX, &text);
    if (status == TOW_OK)
        status = tow_lower_header_open(&header, text.items, text.count);
    if (status == TOW_OK)
        status = tow_graph_parse(text.items, text.count, &program);
    if (status == TOW_OK) status = lower(a, &header, &program);
    tow_graph_destroy(program);
    tow_lower_header_close(&header);
    tow_vec_deinit(&text);
    if (status == TOW_OK) return TOW_OK;
    return tow_status_annotate(status, "%s", a->file);
}

int tow_command_lower(int argc, char **argv)
{
    static const struct argp_option table[] = {
        {"after", 'a', "PASS", 0,
         "Print the program after this pass: verify, insert, place or split (split)",
         0},
        {"worker", 'w', "PROCESS", 0,
         "After split, print only the part of worker P (all)", 0},
        {"memory", 'm', NULL, 0,
         "Print instead the memory that a run takes on each device", 0},
        {"json", 'j', NULL, 0, "Print one JSON object per line", 0},
        {0},
    };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .args_doc = "FILE",
        .doc =
            "Lowers a program in its text form and prints it after a pass: as read and verified (verify), with transfers (insert), with devices (place), or split into the steps of each worker (split).\v"
            "The lines above the program declare its slices, hosts and functions:\n\n"
            "  slice 1 on 0.0-3, 1.0-3      PROCESS.DEVICE, both may be ranges\n"
            "  slice 2 on 2-3.0-3\n"
            "  host 0, 1                    processes of one host\n"
            "  function 1 \"A\" for 8 (f32[4,8] as 8x1) -> (f32[4,8] as 8x1)\n"
            "  function 2 \"B\" for 8 (f32[32,1] as 1x8) -> (f32[32,1] as 1x8)\n"
            "  program \"AB\" {\n"
            "    %0 = argument \"x\" : f32[4,8] on slice 1\n"
            "    %1 = compute \"A\" function 1 on slice 1 (%0)\n"
            "    %2 = compute \"B\" function 2 on slice 2 (%1)\n"
            "    %3 = result \"y\" (%2)\n"
            "  }\n\n"
            "Shapes are those of one shard; `as 2x4*2` is the sharding: 2 by 4 parts, each on two devices. `alias 0` after a result: it reuses the memory of argument 0. `temporary 4096` after the results: bytes that the function takes while it runs.",
    };
    lower_arguments_t arguments = {.after = PASS_SPLIT, .worker = NO_WORKER};
    const int usage = tow_command_parse(&argp, argc, argv, &arguments);
    if (usage != 0) return usage;
    return tow_command_finish("lower", lower_file(&arguments));
}
