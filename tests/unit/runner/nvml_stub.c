/* A libnvidia-ml.so.1 for tests. Every call reads the file named by NVML_STUB anew, so that a test moves values and
   injects faults while a program runs. A line is "key value":

     gpus 2                          how many GPUs there are
     gpu1.used 1024                  a value of GPU 1; gpu1.mig0.used of its first MIG instance
     gpu0.processes 4001:1024 7:-    pids and bytes ("-": not told)
     fail.nvmlDeviceGetUtilizationRates 15     what this function returns from now on

   The library is written against nvml.h: names with their suffixes, layouts and return codes are the ABI that the Python
   bindings call. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, VERSION_MISMATCH = 25 };
enum { GPUS = 8, INSTANCES = 7, LINE = 1024 };

typedef unsigned int uint;
typedef unsigned long long bytes_t;

struct device {
    char name[32]; /* the prefix of its keys */
    struct device *board;
};
typedef struct device *Device;

static struct device boards[GPUS], instances[GPUS][INSTANCES];

/* The value of a key, "" if the file has none; the last line wins, so that a test may append. */
static const char *look_up(const char *key) {
    static char value[LINE];
    char line[LINE];
    const char *path = getenv("NVML_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    size_t length = strlen(key);
    value[0] = 0;
    if (!file)
        return value;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, key, length) && line[length] == ' ')
            strcpy(value, line + length + 1);
    }
    fclose(file);
    return value;
}

static const char *text_of(Device device, const char *what) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", device->name, what);
    return look_up(key);
}

static bytes_t number_of(Device device, const char *what) { return strtoull(text_of(device, what), NULL, 0); }

static int is_instance(Device device) { return device->board != device; }

static int planned_failure(const char *function) {
    char key[96];
    snprintf(key, sizeof key, "fail.%s", function);
    return atoi(look_up(key));
}

#define MAY_FAIL                                  \
    do {                                          \
        int planned = planned_failure(__func__);  \
        if (planned)                              \
            return planned;                       \
    } while (0)

/* What the device has no line for it does not support, as an old or small GPU would say. */
#define NEEDS(device, what)                       \
    do {                                          \
        if (!*text_of(device, what))              \
            return NOT_SUPPORTED;                 \
    } while (0)

int nvmlInitWithFlags(uint flags) {
    (void)flags;
    MAY_FAIL;
    for (int gpu = 0; gpu < GPUS; gpu++) {
        snprintf(boards[gpu].name, sizeof boards[gpu].name, "gpu%d", gpu);
        boards[gpu].board = &boards[gpu];
        for (int at = 0; at < INSTANCES; at++) {
            snprintf(instances[gpu][at].name, sizeof instances[gpu][at].name, "gpu%d.mig%d", gpu, at);
            instances[gpu][at].board = &boards[gpu];
        }
    }
    return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) { return SUCCESS; }

int nvmlDeviceGetUUID(Device device, char *uuid, uint length) {
    MAY_FAIL;
    snprintf(uuid, length, "%s", text_of(device, "uuid"));
    return *uuid ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device *device) {
    MAY_FAIL;
    for (int gpu = 0; gpu < atoi(look_up("gpus")); gpu++) {
        if (!strcmp(text_of(&boards[gpu], "uuid"), uuid)) {
            *device = &boards[gpu];
            return SUCCESS;
        }
        for (int at = 0; at < INSTANCES; at++)
            if (!strcmp(text_of(&instances[gpu][at], "uuid"), uuid)) {
                *device = &instances[gpu][at];
                return SUCCESS;
            }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetMigMode(Device device, uint *current, uint *pending) {
    MAY_FAIL;
    NEEDS(device, "mig_mode");
    *current = *pending = (uint)number_of(device, "mig_mode");
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Device device, uint *count) {
    (void)device;
    MAY_FAIL;
    *count = INSTANCES;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device device, uint at, Device *instance) {
    MAY_FAIL;
    *instance = &instances[device - boards][at];
    return *text_of(*instance, "uuid") ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device instance, Device *board) {
    MAY_FAIL;
    *board = instance->board;
    return is_instance(instance) ? SUCCESS : INVALID_ARGUMENT;
}

struct memory {
    uint version;
    bytes_t total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(Device device, struct memory *memory) {
    MAY_FAIL;
    if (memory->version != (sizeof *memory | 2u << 24))
        return VERSION_MISMATCH;
    memory->total = number_of(device, "total");
    memory->reserved = number_of(device, "reserved");
    memory->free = memory->total - memory->reserved - number_of(device, "used");
    memory->used = memory->total - memory->free; /* the field whose meaning is in doubt: here with the reserved part */
    return SUCCESS;
}

struct process {
    uint pid;
    bytes_t used;
    uint gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses_v3(Device device, uint *count, struct process *processes) {
    MAY_FAIL;
    char listed[LINE];
    uint room = *count;
    strcpy(listed, text_of(device, "processes"));
    *count = 0;
    for (char *word = strtok(listed, " "); word; word = strtok(NULL, " "), ++*count) {
        char *used = strchr(word, ':') + 1;
        if (*count < room && processes)
            processes[*count] = (struct process){(uint)atoi(word), *used == '-' ? ~0ull : strtoull(used, NULL, 0), ~0u, ~0u};
    }
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Device device, uint rates[2]) {
    MAY_FAIL;
    if (is_instance(device))
        return NOT_SUPPORTED;
    rates[0] = (uint)number_of(device, "utilization");
    rates[1] = 0;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(Device device, uint *milliwatts) {
    MAY_FAIL;
    NEEDS(device, "power");
    *milliwatts = (uint)number_of(device, "power");
    return SUCCESS;
}

int nvmlDeviceGetEnforcedPowerLimit(Device device, uint *milliwatts) {
    MAY_FAIL;
    NEEDS(device, "power_limit");
    *milliwatts = (uint)number_of(device, "power_limit");
    return SUCCESS;
}

int nvmlDeviceGetTemperature(Device device, int sensor, uint *celsius) {
    MAY_FAIL;
    *celsius = (uint)number_of(device, "temperature");
    return sensor ? INVALID_ARGUMENT : SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Device device, bytes_t *reasons) {
    MAY_FAIL;
    *reasons = number_of(device, "throttle");
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(Device device, bytes_t *reasons) {
    MAY_FAIL;
    return nvmlDeviceGetCurrentClocksThrottleReasons(device, reasons);
}

int nvmlDeviceGetTotalEccErrors(Device device, int type, int counter, bytes_t *count) {
    MAY_FAIL;
    NEEDS(device, "ecc_uncorrected");
    if (type != 1 || counter != 0)
        return INVALID_ARGUMENT;
    *count = number_of(device, "ecc_uncorrected");
    return SUCCESS;
}
