/* Answers in a GPU's memory, in the order of a stream: gpu URL [no-staging]
 *
 * With no-staging it is an error where no NIC can write to the GPU's memory; else answers are copied from pinned memory there.
 *
 * CUDA's driver is opened at run time, as rowmill does it, so that this compiles without CUDA: the library that the environment variable
 * ROWMILL_CUDA_LIBRARY names, else libcuda.so.1. A program with the CUDA runtime has cudaMalloc() and cudaStream_t instead. */
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rowmill.h>

enum { BAGS = 2, DIM = 64 };

static void must(int status, const char *what) {
    if (status != ROWMILL_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, rowmill_status_name(status), rowmill_error_text());
        exit(EXIT_FAILURE);
    }
}

/* What is to fail, and the words that its sentence has to have. */
static void fails(int status, int wanted, const char *words) {
    if (status != wanted || strstr(rowmill_error_text(), words) == NULL) {
        fprintf(stderr, "wanted %s with \"%s\", got %s: %s\n", rowmill_status_name(wanted), words, rowmill_status_name(status),
                rowmill_error_text());
        exit(EXIT_FAILURE);
    }
}

static void *driver;

/* A function of the driver. */
static void find(const char *name, void *function) {
    void *found = dlsym(driver, name);
    if (found == NULL) {
        fprintf(stderr, "the driver lacks %s\n", name);
        exit(EXIT_FAILURE);
    }
    memcpy(function, &found, sizeof found);
}

static void cuda(int code, const char *what) {
    if (code != 0) {
        fprintf(stderr, "%s: CUDA's error %d\n", what, code);
        exit(EXIT_FAILURE);
    }
}

typedef unsigned long long device_pointer; /* CUdeviceptr */

static int (*init)(unsigned flags);
static int (*retain)(void **context, int device);
static int (*release)(int device);
static int (*push)(void *context);
static int (*pop)(void **context);
static int (*allocate)(device_pointer *memory, size_t bytes);
static int (*free_memory)(device_pointer memory);
static int (*stream_create)(void **stream, unsigned flags);
static int (*stream_destroy)(void *stream);
static int (*copy_in_stream)(device_pointer to, device_pointer from, size_t bytes, void *stream);
static int (*copy_out)(void *to, device_pointer from, size_t bytes);

static void open_driver(void) {
    const char *library = getenv("ROWMILL_CUDA_LIBRARY");
    driver = dlopen(library != NULL ? library : "libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(EXIT_FAILURE);
    }
    find("cuInit", &init);
    find("cuDevicePrimaryCtxRetain", &retain);
    find("cuDevicePrimaryCtxRelease_v2", &release);
    find("cuCtxPushCurrent_v2", &push);
    find("cuCtxPopCurrent_v2", &pop);
    find("cuMemAlloc_v2", &allocate);
    find("cuMemFree_v2", &free_memory);
    find("cuStreamCreate", &stream_create);
    find("cuStreamDestroy_v2", &stream_destroy);
    find("cuMemcpyDtoDAsync_v2", &copy_in_stream);
    find("cuMemcpyDtoH_v2", &copy_out);
}

/* A lookup into device memory, and what the stream does with it then; and the same rows in the host's memory. `by_nic`: a NIC writes
 * there, and nothing is copied. */
static void look_up(rowmill_client *client, rowmill_schema *schema, rowmill_gpu *gpu, void *stream, device_pointer out,
                    device_pointer used, bool by_nic) {
    uint32_t ids[] = {17, 4, 99, 5}, lengths[] = {3, 1};
    rowmill_jagged part = {.size = sizeof part, .ids = ids, .n_ids = 4, .id_bits = 32,
                           .lengths = lengths, .n_divisions = BAGS, .division_bits = 32};
    rowmill_batch batch = {.size = sizeof batch, .bags = BAGS, .parts = &part, .n_parts = 1};
    uint64_t bytes;
    must(rowmill_answer_bytes(schema, BAGS, &bytes), "answer_bytes");

    void *memory = (void *)(uintptr_t)out;
    must(rowmill_submit_on_stream(gpu, schema, &batch, memory, bytes, stream, NULL), "submit_on_stream");
    /* Queued behind the lookup: finds the answer. A model's kernels would be launched here. */
    cuda(copy_in_stream(used, out, bytes, stream), "cuMemcpyDtoDAsync");
    must(rowmill_gpu_synchronize(gpu, stream), "gpu_synchronize");
    float found[BAGS][DIM];
    cuda(copy_out(found, used, sizeof found), "cuMemcpyDtoH");

    rowmill_region *region;
    void *start;
    must(rowmill_region_create(client, bytes, &region, &start), "region_create");
    rowmill_target target = {.size = sizeof target, .region = region};
    rowmill_ticket ticket;
    rowmill_answer answer = {.size = sizeof answer};
    must(rowmill_submit(client, schema, &batch, &target, NULL, &ticket), "submit");
    must(rowmill_wait(client, ticket, -1, &answer), "wait");
    if (memcmp(found, start, sizeof found) != 0) {
        fprintf(stderr, "the GPU has another answer than the host\n");
        exit(EXIT_FAILURE);
    }
    must(rowmill_region_free(region), "region_free");
    printf("the GPU has the answer that the host has\n");

    /* A stream never hangs: without an answer it goes on, with NaNs where answers are copied, and the next call tells. */
    ids[3] = 100000;
    must(rowmill_submit_on_stream(gpu, schema, &batch, memory, bytes, stream, NULL), "submit_on_stream");
    fails(rowmill_gpu_synchronize(gpu, stream), ROWMILL_DEVICE, "IdOutOfRange");
    printf("%s: %s\n", rowmill_status_name(ROWMILL_DEVICE), rowmill_error_text());
    must(rowmill_gpu_check(gpu), "it was told");
    cuda(copy_out(found, out, sizeof found), "cuMemcpyDtoH");
    if (!by_nic && !isnan(found[0][0])) {
        fprintf(stderr, "there is %g where no answer came\n", (double)found[0][0]);
        exit(EXIT_FAILURE);
    }

    /* What is wrong is refused before anything is sent. */
    fails(rowmill_submit_on_stream(gpu, schema, &batch, found, bytes, stream, NULL), ROWMILL_INVALID,
          by_nic ? "the memory is not registered" : "no memory of GPU 0");
    fails(rowmill_submit_on_stream(gpu, schema, &batch, memory, bytes - 1, stream, NULL), ROWMILL_INVALID, "takes");
    fails(rowmill_gpu_register(gpu, found, sizeof found), ROWMILL_INVALID, "no memory of GPU 0");
}

int main(int argc, char **argv) {
    bool no_staging = argc == 3 && strcmp(argv[2], "no-staging") == 0;
    if (argc != 2 && !no_staging) {
        fprintf(stderr, "usage: gpu URL [no-staging]\n");
        return 2;
    }
    open_driver();
    void *context, *stream;
    cuda(init(0), "cuInit");
    cuda(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    cuda(push(context), "cuCtxPushCurrent");

    rowmill_client *client;
    must(rowmill_connect(argv[1], NULL, &client), "connect");
    rowmill_feature feature = {.size = sizeof feature, .pooling = ROWMILL_SUM, .name = "clicked", .table = "items"};
    rowmill_schema *schema;
    must(rowmill_bind(client, &feature, 1, BAGS, &schema), "bind");
    rowmill_gpu *gpu;
    rowmill_gpu_options options = {.size = sizeof options, .flags = no_staging ? ROWMILL_NO_STAGING : 0};
    must(rowmill_gpu_open(client, &options, &gpu), "gpu_open");
    size_t length;
    must(rowmill_gpu_report(gpu, NULL, 0, &length), "gpu_report");
    char *report = malloc(length);
    must(rowmill_gpu_report(gpu, report, length, NULL), "gpu_report");
    printf("%s\n", report);
    free(report);

    /* A non-blocking stream: the default one would wait for it, and it for that. */
    enum { NON_BLOCKING = 1 };
    device_pointer out, used;
    cuda(stream_create(&stream, NON_BLOCKING), "cuStreamCreate");
    cuda(allocate(&out, BAGS * DIM * sizeof(float)), "cuMemAlloc");
    cuda(allocate(&used, BAGS * DIM * sizeof(float)), "cuMemAlloc");
    if (!no_staging) {
        look_up(client, schema, gpu, stream, out, used, false);
    }
    /* Memory that is used again and again is best registered, so that a NIC can write to it where there is one. */
    void *memory = (void *)(uintptr_t)out;
    fails(rowmill_gpu_unregister(gpu, memory), ROWMILL_INVALID, "no memory was registered");
    must(rowmill_gpu_register(gpu, memory, BAGS * DIM * sizeof(float)), "gpu_register");
    look_up(client, schema, gpu, stream, out, used, no_staging);
    must(rowmill_gpu_check(gpu), "gpu_check");
    char tried[512];
    uint64_t copied;
    must(rowmill_gpu_region_report(gpu, memory, tried, sizeof tried, NULL), "gpu_region_report");
    must(rowmill_gpu_staged_instead(gpu, &copied), "gpu_staged_instead");
    printf("for that memory:\n%s\n%llu answers were copied since their stream was busy\n", tried, (unsigned long long)copied);
    must(rowmill_gpu_unregister(gpu, memory), "gpu_unregister");
    fails(rowmill_gpu_region_report(gpu, memory, tried, sizeof tried, NULL), ROWMILL_INVALID, "no memory was registered");

    rowmill_gpu *none;
    rowmill_gpu_options other = {.size = sizeof other, .ordinal = 7};
    fails(rowmill_gpu_open(client, &other, &none), ROWMILL_DEVICE, "there is no GPU 7");
    rowmill_gpu_options missing = {.size = sizeof missing, .library = "/nowhere/libcuda.so.1"};
    fails(rowmill_gpu_open(client, &missing, &none), ROWMILL_DEVICE, "/nowhere/libcuda.so.1");
    rowmill_gpu_options unknown = {.size = sizeof unknown, .flags = 6};
    fails(rowmill_gpu_open(client, &unknown, &none), ROWMILL_INVALID, "options.flags is 0x6");

    must(rowmill_gpu_close(gpu), "gpu_close");
    fails(rowmill_gpu_check(gpu), ROWMILL_INVALID, "the GPU was closed");
    fails(rowmill_gpu_close(gpu), ROWMILL_INVALID, "the GPU was closed");
    must(rowmill_schema_free(schema), "schema_free");
    must(rowmill_close(client), "close");
    cuda(free_memory(out), "cuMemFree");
    cuda(free_memory(used), "cuMemFree");
    cuda(stream_destroy(stream), "cuStreamDestroy");
    cuda(pop(&context), "cuCtxPopCurrent");
    cuda(release(0), "cuDevicePrimaryCtxRelease");
    return EXIT_SUCCESS;
}
