/* Memory that another library works in, which gives it back in any thread of its own.
 *
 * The capsule is DLPack's (dmlc.github.io/dlpack, version 0). Its deleter takes no lock
 * of the interpreter: a thread that has that lock may be waiting for the library. What
 * was given back waits in a list until the interpreter comes to it. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct {
    void *data;
    int32_t device_type, device_id, dims;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t offset;
} Tensor;
typedef struct Managed {
    Tensor tensor;
    void *owner;
    void (*deleter)(struct Managed *);
} Managed;
typedef struct Lent {
    Managed managed;
    int64_t count;
    Py_buffer view;
    struct Lent *next;
} Lent;

enum { ON_HOST = 1, UNSIGNED = 1 };

static _Atomic(Lent *) given_back;

/* Release all that was given back. With the interpreter's lock. */
static int take_back(void *none)
{
    Lent *lent = atomic_exchange(&given_back, NULL);
    while (lent != NULL) {
        Lent *next = lent->next;
        PyBuffer_Release(&lent->view);
        free(lent);
        lent = next;
    }
    return 0;
}

static void give_back(Managed *managed)
{
    Lent *lent = managed->owner;
    lent->next = atomic_load(&given_back);
    while (!atomic_compare_exchange_weak(&given_back, &lent->next, lent))
        ;
    if (Py_IsInitialized())
        Py_AddPendingCall(take_back, NULL); /* else, or if it is full: the next lend */
}

static void capsule_gone(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor")) /* nobody took it */
        give_back(PyCapsule_GetPointer(capsule, "dltensor"));
}

/* lend(memory) -> capsule of its bytes, which keeps it */
static PyObject *lend(PyObject *module, PyObject *memory)
{
    take_back(NULL);
    Lent *lent = calloc(1, sizeof *lent);
    if (lent == NULL)
        return PyErr_NoMemory();
    if (PyObject_GetBuffer(memory, &lent->view, PyBUF_WRITABLE) < 0) {
        free(lent);
        return NULL;
    }
    lent->count = lent->view.len;
    lent->managed = (Managed){
        {lent->view.buf, ON_HOST, 0, 1, UNSIGNED, 8, 1, &lent->count, NULL, 0},
        lent,
        give_back};
    PyObject *capsule = PyCapsule_New(&lent->managed, "dltensor", capsule_gone);
    if (capsule == NULL) {
        PyBuffer_Release(&lent->view);
        free(lent);
    }
    return capsule;
}
