// Echo calls over UCX active messages, for `farcall-bench peers`. `cargo xtask peers` compiles this folder.
//
//     ucx-echo server CORE SIZE WINDOW
//     ucx-echo client CORE SIZE WINDOW ADDRESS [unread]
//
// The server prints `ready ADDRESS`, with the address of its worker as hexadecimal digits. On its standard input, `rest`
// lets it sleep and `work` ends the rest. The client prints `ready` after the first answer. `turn NANOS` lets it call for
// that long, with WINDOW calls outstanding; `after NANOS` lets it wait, and then make one call. A call's time ends when its answer
// is in the client's own memory; with `unread`, when UCX shows where it has landed, for as long as a callback runs. It answers both with
// `done CALLS NANOS SAMPLES`, and then the samples: the times of single calls in nanoseconds, as 32-bit numbers.
// Both end with their standard input.


#define _GNU_SOURCE
#include "echo.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

ucp_worker_h worker;
struct call *calls;
uint32_t *free_calls;
uint32_t free_count, call_count;
size_t size;
uint32_t window;
char *pattern;
int keeps_answers;

void fail(const char *what, ucs_status_t status)
{
    fprintf(stderr, "ucx-echo: %s: %s\n", what, ucs_status_string(status));
    exit(1);
}

void check(const char *what, ucs_status_t status)
{
    if (status != UCS_OK) {
        fail(what, status);
    }
}

void *allocate(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, bytes ? bytes : 1) != 0) {
        fail("memory", UCS_ERR_NO_MEMORY);
    }
    // Touches all pages.
    memset(memory, 0, bytes);
    return memory;
}

static void make_calls(uint32_t count)
{
    calls = allocate(count * sizeof *calls);
    free_calls = allocate(count * sizeof *free_calls);
    call_count = count;
    for (uint32_t call = 0; call < count; call++) {
        calls[call].header.call = call;
        calls[call].buffer = allocate(size);
        // No reply is expected.
        calls[call].answered = 1;
        free_calls[free_count++] = count - 1 - call;
    }
}

struct call *take_call(void)
{
    if (free_count == 0) {
        fail("more calls than the window", UCS_ERR_NO_RESOURCE);
    }
    return &calls[free_calls[--free_count]];
}

void free_call(struct call *call)
{
    free_calls[free_count++] = call - calls;
}

void pull(struct call *call, void *descriptor, ucp_am_recv_data_nbx_callback_t then)
{
    ucp_request_param_t how = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am = then,
        .user_data = call,
    };
    ucs_status_ptr_t pulled =
        ucp_am_recv_data_nbx(worker, descriptor, call->buffer, call->length, &how);
    if (UCS_PTR_IS_ERR(pulled)) {
        fail("cannot pull", UCS_PTR_STATUS(pulled));
    }
    if (pulled == NULL) {
        then(NULL, UCS_OK, call->length, call);
    }
}

int main(int count, char **words)
{
    int is_unread = count == 7 && strcmp(words[6], "unread") == 0;
    int is_client = (count == 6 || is_unread) && strcmp(words[1], "client") == 0;
    if (!is_client && !(count == 5 && strcmp(words[1], "server") == 0)) {
        fprintf(stderr, "ucx-echo server CORE SIZE WINDOW | client CORE SIZE WINDOW ADDRESS [unread]\n");
        return 2;
    }
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(atoi(words[2]), &cores);
    if (sched_setaffinity(0, sizeof cores, &cores) != 0) {
        perror("ucx-echo: cannot pin to the core");
        return 1;
    }
    keeps_answers = !is_unread;
    size = strtoull(words[3], NULL, 10);
    window = strtoul(words[4], NULL, 10);
    pattern = allocate(size);
    for (size_t byte = 0; byte < size; byte++) {
        pattern[byte] = byte % 251;
    }
    // The server may still send a reply while its client has received it, and started the next call.
    make_calls(is_client ? window : 2 * window);

    ucp_params_t features = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = UCP_FEATURE_AM,
    };
    ucp_worker_params_t threads = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
    };
    ucp_context_h context;
    check("no context", ucp_init(&features, NULL, &context));
    check("no worker", ucp_worker_create(context, &threads, &worker));
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
        .id = is_client ? REPLY : REQUEST,
        .cb = is_client ? on_reply : on_request,
    };
    check("no handler", ucp_worker_set_am_recv_handler(worker, &handler));
    if (is_client) {
        obey(words[5]);
    } else {
        serve();
    }
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    return 0;
}
