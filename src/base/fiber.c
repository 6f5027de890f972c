#include "base/fiber.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.h"

#if defined(__SANITIZE_ADDRESS__)
#define FIBER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBER_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define FIBER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FIBER_TSAN 1
#endif
#endif

struct tow_fiber {
    void *at;      /* its stack pointer while suspended */
    void *resumer; /* stack pointer of the resumer, while it runs */
    void *mapping; /* owned: guard page, then the stack */
    size_t mapped_bytes;
    size_t page_bytes;
    void (*run)(void *argument);
    void *argument;
    tow_fiber_t *outer; /* fiber of the resumer */
    bool is_under_way;
#if defined(FIBER_ASAN)
    void *own_fake_stack;
    void *resumer_fake_stack;
    const void *resumer_stack;
    size_t resumer_stack_bytes;
#endif
#if defined(FIBER_TSAN)
    void *own_tsan;
    void *resumer_tsan;
#endif
};

static _Thread_local tow_fiber_t *current;

/* -- Stack switch ---------------------------------------------------------- */

/* Pushes the callee-saved registers, stores the stack pointer in *out_here,
 * then switches to the stack `there` and pops its registers. */
void tow_fiber_switch_(void **out_here, void *there)
    __attribute__((visibility("hidden")));
/* Entry point of a fiber: calls main(fiber), which does not return. */
void tow_fiber_begin_(void) __attribute__((visibility("hidden")));

#if defined(__x86_64__)

/* Below the return address: rbp, rbx, r12 to r15, and the control words of SSE
 * and of the x87. */
__asm__(".text\n"
        ".p2align 4\n"
        ".globl tow_fiber_switch_\n"
        ".hidden tow_fiber_switch_\n"
        ".type tow_fiber_switch_, @function\n"
        "tow_fiber_switch_:\n"
        ".cfi_startproc\n"
        "pushq %rbp\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset %rbp, 0\n"
        "pushq %rbx\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset %rbx, 0\n"
        "pushq %r12\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset %r12, 0\n"
        "pushq %r13\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset %r13, 0\n"
        "pushq %r14\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset %r14, 0\n"
        "pushq %r15\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset %r15, 0\n"
        "subq $8, %rsp\n.cfi_adjust_cfa_offset 8\n"
        "stmxcsr (%rsp)\n"
        "fnstcw 4(%rsp)\n"
        "movq %rsp, (%rdi)\n"
        "movq %rsi, %rsp\n"
        "ldmxcsr (%rsp)\n"
        "fldcw 4(%rsp)\n"
        "addq $8, %rsp\n.cfi_adjust_cfa_offset -8\n"
        "popq %r15\n.cfi_adjust_cfa_offset -8\n.cfi_restore %r15\n"
        "popq %r14\n.cfi_adjust_cfa_offset -8\n.cfi_restore %r14\n"
        "popq %r13\n.cfi_adjust_cfa_offset -8\n.cfi_restore %r13\n"
        "popq %r12\n.cfi_adjust_cfa_offset -8\n.cfi_restore %r12\n"
        "popq %rbx\n.cfi_adjust_cfa_offset -8\n.cfi_restore %rbx\n"
        "popq %rbp\n.cfi_adjust_cfa_offset -8\n.cfi_restore %rbp\n"
        "ret\n"
        ".cfi_endproc\n"
        ".size tow_fiber_switch_, . - tow_fiber_switch_\n"
        ".p2align 4\n"
        ".globl tow_fiber_begin_\n"
        ".hidden tow_fiber_begin_\n"
        ".type tow_fiber_begin_, @function\n"
        "tow_fiber_begin_:\n"
        ".cfi_startproc\n"
        ".cfi_undefined %rip\n" /* Unwinders stop here. */
        "movq %r12, %rdi\n"
        "callq *%r13\n"
        "ud2\n"
        ".cfi_endproc\n"
        ".size tow_fiber_begin_, . - tow_fiber_begin_\n");

static void *first_frame(tow_fiber_t *fiber, void (*main)(tow_fiber_t *))
{
    uint64_t *top = (uint64_t *)((char *)fiber->mapping + fiber->mapped_bytes);
    uint32_t control[2] = {0};
    __asm__ volatile("stmxcsr %0" : "=m"(control[0]));
    __asm__ volatile("fnstcw %0" : "=m"(control[1]));
    *--top = 0;
    *--top = 0; /* The frame stays aligned to 16 bytes. */
    *--top = (uint64_t)(uintptr_t)tow_fiber_begin_;
    *--top = 0;                          /* rbp */
    *--top = 0;                          /* rbx */
    *--top = (uint64_t)(uintptr_t)fiber; /* r12 */
    *--top = (uint64_t)(uintptr_t)main;  /* r13 */
    *--top = 0;                          /* r14 */
    *--top = 0;                          /* r15 */
    memcpy(--top, control, sizeof(control));
    return top;
}

#elif defined(__aarch64__)

/* x19 to x30, d8 to d15, and the control register of floating point. */
__asm__(".text\n"
        ".p2align 4\n"
        ".globl tow_fiber_switch_\n"
        ".hidden tow_fiber_switch_\n"
        ".type tow_fiber_switch_, %function\n"
        "tow_fiber_switch_:\n"
        "sub sp, sp, #176\n"
        "stp x19, x20, [sp, #0]\n"
        "stp x21, x22, [sp, #16]\n"
        "stp x23, x24, [sp, #32]\n"
        "stp x25, x26, [sp, #48]\n"
        "stp x27, x28, [sp, #64]\n"
        "stp x29, x30, [sp, #80]\n"
        "stp d8, d9, [sp, #96]\n"
        "stp d10, d11, [sp, #112]\n"
        "stp d12, d13, [sp, #128]\n"
        "stp d14, d15, [sp, #144]\n"
        "mrs x9, fpcr\n"
        "str x9, [sp, #160]\n"
        "mov x9, sp\n"
        "str x9, [x0]\n"
        "mov sp, x1\n"
        "ldp x19, x20, [sp, #0]\n"
        "ldp x21, x22, [sp, #16]\n"
        "ldp x23, x24, [sp, #32]\n"
        "ldp x25, x26, [sp, #48]\n"
        "ldp x27, x28, [sp, #64]\n"
        "ldp x29, x30, [sp, #80]\n"
        "ldp d8, d9, [sp, #96]\n"
        "ldp d10, d11, [sp, #112]\n"
        "ldp d12, d13, [sp, #128]\n"
        "ldp d14, d15, [sp, #144]\n"
        "ldr x9, [sp, #160]\n"
        "msr fpcr, x9\n"
        "add sp, sp, #176\n"
        "ret\n"
        ".size tow_fiber_switch_, . - tow_fiber_switch_\n"
        ".p2align 4\n"
        ".globl tow_fiber_begin_\n"
        ".hidden tow_fiber_begin_\n"
        ".type tow_fiber_begin_, %function\n"
        "tow_fiber_begin_:\n"
        ".cfi_startproc\n"
        ".cfi_undefined x30\n" /* Unwinders stop here. */
        "mov x0, x19\n"
        "blr x20\n"
        "brk #0\n"
        ".cfi_endproc\n"
        ".size tow_fiber_begin_, . - tow_fiber_begin_\n");

static void *first_frame(tow_fiber_t *fiber, void (*main)(tow_fiber_t *))
{
    char *top = (char *)fiber->mapping + fiber->mapped_bytes - 176;
    uint64_t saved[22] = {0};
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    saved[0] = (uint64_t)(uintptr_t)fiber;             /* x19 */
    saved[1] = (uint64_t)(uintptr_t)main;              /* x20 */
    saved[11] = (uint64_t)(uintptr_t)tow_fiber_begin_; /* x30 */
    saved[20] = control;
    memcpy(top, saved, sizeof(saved));
    return top;
}

#else
#define FIBER_NONE 1

void tow_fiber_switch_(void **out_here, void *there)
{
    (void)out_here, (void)there;
    TOW_ASSERT(!"fibers are not for this machine");
}

static void *first_frame(tow_fiber_t *fiber, void (*main)(tow_fiber_t *))
{
    (void)fiber, (void)main;
    return NULL;
}
#endif

bool tow_fiber_is_supported(void)
{
#if defined(FIBER_NONE)
    return false;
#else
    return true;
#endif
}

/* -- Sanitizer annotations ------------------------------------------- */

#if defined(FIBER_ASAN)
#include <sanitizer/common_interface_defs.h>

static void leave_resumer(tow_fiber_t *fiber)
{
    __sanitizer_start_switch_fiber(&fiber->resumer_fake_stack,
                                   (char *)fiber->mapping + fiber->page_bytes,
                                   fiber->mapped_bytes - fiber->page_bytes);
}

static void reach_resumer(tow_fiber_t *fiber)
{
    __sanitizer_finish_switch_fiber(fiber->resumer_fake_stack, NULL, NULL);
}

static void leave_fiber(tow_fiber_t *fiber, bool for_good)
{
    __sanitizer_start_switch_fiber(for_good ? NULL : &fiber->own_fake_stack,
                                   fiber->resumer_stack,
                                   fiber->resumer_stack_bytes);
}

static void reach_fiber(tow_fiber_t *fiber)
{
    __sanitizer_finish_switch_fiber(fiber->own_fake_stack,
                                    &fiber->resumer_stack,
                                    &fiber->resumer_stack_bytes);
}
#elif defined(FIBER_TSAN)
#include <sanitizer/tsan_interface.h>

static void leave_resumer(tow_fiber_t *fiber)
{
    fiber->resumer_tsan = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber->own_tsan, 0);
}

static void leave_fiber(tow_fiber_t *fiber, bool for_good)
{
    (void)for_good;
    __tsan_switch_to_fiber(fiber->resumer_tsan, 0);
}

static void reach_resumer(tow_fiber_t *fiber)
{
    (void)fiber;
}

static void reach_fiber(tow_fiber_t *fiber)
{
    (void)fiber;
}
#else
static void leave_resumer(tow_fiber_t *fiber)
{
    (void)fiber;
}

static void reach_resumer(tow_fiber_t *fiber)
{
    (void)fiber;
}

static void leave_fiber(tow_fiber_t *fiber, bool for_good)
{
    (void)fiber, (void)for_good;
}

static void reach_fiber(tow_fiber_t *fiber)
{
    (void)fiber;
}
#endif

/* -- Creating and running fibers ------------------------------------------- */

tow_fiber_t *tow_fiber_create(size_t stack_bytes)
{
    tow_fiber_t *fiber = calloc(1, sizeof(*fiber));
    if (fiber == NULL) return NULL;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    fiber->page_bytes = page;
    fiber->mapped_bytes = (stack_bytes + page - 1) / page * page + page;
    fiber->mapping =
        mmap(NULL, fiber->mapped_bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (fiber->mapping == MAP_FAILED) {
        free(fiber);
        return NULL;
    }
    if (mprotect(fiber->mapping, page, PROT_NONE) != 0) {
        tow_fiber_destroy(fiber);
        return NULL;
    }
#if defined(FIBER_TSAN)
    fiber->own_tsan = __tsan_create_fiber(0);
#endif
    return fiber;
}

void tow_fiber_destroy(tow_fiber_t *fiber)
{
    if (fiber == NULL) return;
    TOW_ASSERT(!fiber->is_under_way);
#if defined(FIBER_TSAN)
    if (fiber->own_tsan != NULL) __tsan_destroy_fiber(fiber->own_tsan);
#endif
    munmap(fiber->mapping, fiber->mapped_bytes);
    free(fiber);
}

static void fiber_main(tow_fiber_t *fiber)
{
    reach_fiber(fiber);
    fiber->run(fiber->argument);
    fiber->is_under_way = false;
    leave_fiber(fiber, true);
    tow_fiber_switch_(&fiber->at, fiber->resumer);
}

void tow_fiber_start(tow_fiber_t *fiber, void (*run)(void *argument),
                     void *argument)
{
    TOW_ASSERT(!fiber->is_under_way);
    fiber->run = run;
    fiber->argument = argument;
    fiber->is_under_way = true;
#if defined(FIBER_ASAN)
    fiber->own_fake_stack = NULL;
#endif
    fiber->at = first_frame(fiber, fiber_main);
}

bool tow_fiber_resume(tow_fiber_t *fiber)
{
    TOW_ASSERT(fiber->is_under_way);
    fiber->outer = current;
    current = fiber;
    leave_resumer(fiber);
    tow_fiber_switch_(&fiber->resumer, fiber->at);
    reach_resumer(fiber);
    current = fiber->outer;
    return !fiber->is_under_way;
}

void tow_fiber_yield(void)
{
    tow_fiber_t *fiber = current;
    TOW_ASSERT(fiber != NULL);
    leave_fiber(fiber, false);
    tow_fiber_switch_(&fiber->at, fiber->resumer);
    reach_fiber(fiber);
}

tow_fiber_t *tow_fiber_current(void)
{
    return current;
}
