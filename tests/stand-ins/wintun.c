/* A stand-in for wintun.dll, for tests only: it is not Wintun and drives no network adapter.
 *
 * It has the exports of wintun.h 0.14 and the semantics of its rings as wintun.h and the driver document them: packets
 * lie in a ring of the session's capacity, each behind its length and aligned to four bytes; packets are released and
 * sent in any order but leave in the order of allocation; one that is allocated and never sent holds up those behind
 * it; a full ring is ERROR_BUFFER_OVERFLOW, an empty one ERROR_NO_MORE_ITEMS, the end of the adapter ERROR_HANDLE_EOF,
 * a damaged ring ERROR_INVALID_DATA.
 *
 * Where the driver would hand packets to Windows, this sends them by UDP to 127.0.0.1, port WINTUN_STAND_IN_PORT; what
 * comes back from there is received. The first datagram is empty and tells the other side where to send to. Without
 * that variable, what is sent is received again. More of the environment, read when it matters:
 *   WINTUN_STAND_IN_CREATE_ERROR   WintunCreateAdapter fails with this code
 *   WINTUN_STAND_IN_SESSION_ERROR  WintunStartSession fails with this code
 *   WINTUN_STAND_IN_END_AFTER      after so many received packets the adapter ends, as when it is removed
 *   WINTUN_STAND_IN_STALL          anything: the driver's side takes nothing out of the ring, which so fills
 */
#include <winsock2.h>
#include <windows.h>
#include <iphlpapi.h>
#include <netioapi.h>
#include <stdlib.h>

#define EXPORT __declspec(dllexport)
#define MAX_PACKET 0xFFFF
#define MIN_CAPACITY 0x20000
#define MAX_CAPACITY 0x4000000
#define RELEASED 0x80000000u
#define ALIGNED(len) (((ULONG)(len) + 3u) & ~3u)
#define ENDED 0xFFFFFFFFu
#define VERSION_0_14 ((0u << 16) | 14u)

typedef struct {
    ULONG capacity;
    volatile ULONG head, tail; /* at or beyond the capacity: the adapter has ended */
    BYTE *data;                /* longer than the capacity by one packet, so that none wraps */
} Ring;

typedef struct {
    WCHAR name[128];
    NET_LUID luid;
} Adapter;

/* Where a program's side of a ring stands: `next` is taken, `done` given back. */
typedef struct {
    CRITICAL_SECTION lock;
    ULONG next, done, pending;
} Side;

typedef struct {
    Ring to_program, to_host;
    Side receiving, sending;
    HANDLE readable, sent;
    HANDLE reader, writer;
    volatile LONG ending;
    SOCKET socket;
    struct sockaddr_in host;
    LONG end_after;
} Session;

static ULONG wrap(ULONG value, const Ring *ring) { return value & (ring->capacity - 1); }

static ULONG *packet_len(const Ring *ring, ULONG at) { return (ULONG *)(ring->data + at); }

static ULONG used(ULONG len) { return ALIGNED(sizeof(ULONG) + len); }

static ULONG number(const char *variable)
{
    char text[32];
    DWORD len = GetEnvironmentVariableA(variable, text, sizeof text);
    return len > 0 && len < sizeof text ? strtoul(text, NULL, 0) : 0;
}

static ULONG free_space(const Ring *ring, ULONG head, ULONG tail)
{
    return wrap(head - tail - sizeof(ULONG), ring);
}

static BOOL has_ended(const Ring *ring)
{
    return ring->head >= ring->capacity || ring->tail >= ring->capacity;
}

static void end_adapter(Session *session)
{
    session->to_program.tail = ENDED;
    session->to_host.head = ENDED;
    SetEvent(session->readable);
}

/* The driver's side: host -> program. FALSE when the ring is full: the packet is lost, as the driver loses it. */
static BOOL put(Session *session, const BYTE *bytes, ULONG len)
{
    Ring *ring = &session->to_program;
    ULONG tail = ring->tail, head = __atomic_load_n(&ring->head, __ATOMIC_ACQUIRE);
    if (has_ended(ring) || used(len) > free_space(ring, head, tail))
        return FALSE;
    *packet_len(ring, tail) = len;
    memcpy(packet_len(ring, tail) + 1, bytes, len);
    __atomic_store_n(&ring->tail, wrap(tail + used(len), ring), __ATOMIC_RELEASE);
    SetEvent(session->readable);
    if (session->end_after > 0 && InterlockedDecrement(&session->end_after) == 0)
        end_adapter(session);
    return TRUE;
}

static DWORD WINAPI read_from_host(void *argument)
{
    Session *session = argument;
    BYTE packet[MAX_PACKET];
    while (!session->ending) {
        int len = recv(session->socket, (char *)packet, sizeof packet, 0);
        if (len > 0)
            put(session, packet, (ULONG)len);
        else if (len < 0)
            Sleep(1);
    }
    return 0;
}

static DWORD WINAPI write_to_host(void *argument)
{
    Session *session = argument;
    Ring *ring = &session->to_host;
    while (!session->ending) {
        ULONG head = ring->head, tail = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);
        if (has_ended(ring) || head == tail || number("WINTUN_STAND_IN_STALL")) {
            WaitForSingleObject(session->sent, 50);
            continue;
        }
        ULONG len = *packet_len(ring, head);
        BYTE *bytes = (BYTE *)(packet_len(ring, head) + 1);
        if (session->socket != INVALID_SOCKET)
            sendto(session->socket, (char *)bytes, (int)len, 0, (struct sockaddr *)&session->host,
                   sizeof session->host);
        else
            put(session, bytes, len);
        /* Not over the end of the adapter, which the other thread may just have marked. */
        __atomic_compare_exchange_n(&ring->head, &head, wrap(head + used(len), ring), FALSE, __ATOMIC_RELEASE,
                                    __ATOMIC_RELAXED);
    }
    return 0;
}

/* By an empty datagram to itself: wine may lose one that arrives while a receive is timing out. */
static void wake_reader(Session *session)
{
    struct sockaddr_in own;
    int len = sizeof own;
    if (session->socket != INVALID_SOCKET && getsockname(session->socket, (struct sockaddr *)&own, &len) == 0)
        sendto(session->socket, "", 0, 0, (struct sockaddr *)&own, len);
}

/* What comes back may come from any port of the host's. */
static BOOL connect_to_host(Session *session)
{
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int buffer = 4 << 20;
    WSADATA data;
    session->host = own;
    session->host.sin_port = htons((u_short)number("WINTUN_STAND_IN_PORT"));
    session->socket = INVALID_SOCKET;
    if (session->host.sin_port == 0)
        return TRUE;
    if (WSAStartup(MAKEWORD(2, 2), &data) != 0)
        return FALSE;
    session->socket = socket(AF_INET, SOCK_DGRAM, IPPROTO_UDP);
    setsockopt(session->socket, SOL_SOCKET, SO_RCVBUF, (char *)&buffer, sizeof buffer);
    setsockopt(session->socket, SOL_SOCKET, SO_SNDBUF, (char *)&buffer, sizeof buffer);
    return bind(session->socket, (struct sockaddr *)&own, sizeof own) == 0 &&
           sendto(session->socket, "", 0, 0, (struct sockaddr *)&session->host, sizeof session->host) == 0;
}

EXPORT void *WINAPI WintunCreateAdapter(const WCHAR *name, const WCHAR *type, const GUID *guid)
{
    ULONG error = number("WINTUN_STAND_IN_CREATE_ERROR");
    Adapter *adapter = error == 0 ? calloc(1, sizeof *adapter) : NULL;
    (void)type, (void)guid;
    if (adapter == NULL) {
        SetLastError(error != 0 ? error : ERROR_OUTOFMEMORY);
        return NULL;
    }
    lstrcpynW(adapter->name, name, 128);
    ConvertInterfaceAliasToLuid(adapter->name, &adapter->luid);
    return adapter;
}

EXPORT void *WINAPI WintunOpenAdapter(const WCHAR *name)
{
    (void)name;
    SetLastError(ERROR_NOT_FOUND);
    return NULL;
}

EXPORT void WINAPI WintunCloseAdapter(void *adapter) { free(adapter); }

EXPORT BOOL WINAPI WintunDeleteDriver(void) { return TRUE; }

EXPORT void WINAPI WintunGetAdapterLUID(void *adapter, NET_LUID *luid) { *luid = ((Adapter *)adapter)->luid; }

EXPORT DWORD WINAPI WintunGetRunningDriverVersion(void) { return VERSION_0_14; }

EXPORT void WINAPI WintunSetLogger(void *logger) { (void)logger; }

static BOOL make_ring(Ring *ring, ULONG capacity)
{
    ring->capacity = capacity;
    ring->data = calloc(1, capacity + used(MAX_PACKET));
    return ring->data != NULL;
}

EXPORT void WINAPI WintunEndSession(Session *session)
{
    InterlockedExchange(&session->ending, 1);
    SetEvent(session->sent);
    wake_reader(session);
    if (session->reader != NULL)
        WaitForSingleObject(session->reader, INFINITE), CloseHandle(session->reader);
    if (session->writer != NULL)
        WaitForSingleObject(session->writer, INFINITE), CloseHandle(session->writer);
    if (session->socket != INVALID_SOCKET)
        closesocket(session->socket);
    CloseHandle(session->readable);
    CloseHandle(session->sent);
    DeleteCriticalSection(&session->receiving.lock);
    DeleteCriticalSection(&session->sending.lock);
    free(session->to_program.data);
    free(session->to_host.data);
    free(session);
}

EXPORT Session *WINAPI WintunStartSession(void *adapter, DWORD capacity)
{
    ULONG error = number("WINTUN_STAND_IN_SESSION_ERROR");
    Session *session;
    (void)adapter;
    if (error == 0 && (capacity < MIN_CAPACITY || capacity > MAX_CAPACITY || (capacity & (capacity - 1)) != 0))
        error = ERROR_INVALID_PARAMETER;
    if (error != 0 || (session = calloc(1, sizeof *session)) == NULL) {
        SetLastError(error != 0 ? error : ERROR_OUTOFMEMORY);
        return NULL;
    }
    InitializeCriticalSection(&session->receiving.lock);
    InitializeCriticalSection(&session->sending.lock);
    session->readable = CreateEventW(NULL, FALSE, FALSE, NULL);
    session->sent = CreateEventW(NULL, FALSE, FALSE, NULL);
    session->end_after = (LONG)number("WINTUN_STAND_IN_END_AFTER");
    if (!make_ring(&session->to_program, capacity) || !make_ring(&session->to_host, capacity) ||
        !connect_to_host(session)) {
        WintunEndSession(session);
        SetLastError(ERROR_OUTOFMEMORY);
        return NULL;
    }
    if (session->socket != INVALID_SOCKET)
        session->reader = CreateThread(NULL, 0, read_from_host, session, 0, NULL);
    session->writer = CreateThread(NULL, 0, write_to_host, session, 0, NULL);
    return session;
}

EXPORT HANDLE WINAPI WintunGetReadWaitEvent(Session *session) { return session->readable; }

static BYTE *take_received(Session *session, DWORD *len)
{
    Ring *ring = &session->to_program;
    ULONG tail = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE), next = session->receiving.next, content;
    if (has_ended(ring))
        return SetLastError(ERROR_HANDLE_EOF), NULL;
    if (next == tail)
        return SetLastError(ERROR_NO_MORE_ITEMS), NULL;
    content = wrap(tail - next, ring);
    *len = *packet_len(ring, next);
    if (*len > MAX_PACKET || used(*len) > content)
        return SetLastError(ERROR_INVALID_DATA), NULL;
    session->receiving.next = wrap(next + used(*len), ring);
    session->receiving.pending++;
    return (BYTE *)(packet_len(ring, next) + 1);
}

EXPORT BYTE *WINAPI WintunReceivePacket(Session *session, DWORD *len)
{
    BYTE *packet;
    EnterCriticalSection(&session->receiving.lock);
    packet = take_received(session, len);
    LeaveCriticalSection(&session->receiving.lock);
    return packet;
}

EXPORT void WINAPI WintunReleaseReceivePacket(Session *session, const BYTE *packet)
{
    Ring *ring = &session->to_program;
    Side *side = &session->receiving;
    EnterCriticalSection(&side->lock);
    ((ULONG *)packet)[-1] |= RELEASED;
    while (side->pending > 0 && (*packet_len(ring, side->done) & RELEASED) != 0) {
        ULONG len = *packet_len(ring, side->done) & ~RELEASED;
        side->done = wrap(side->done + used(len), ring);
        side->pending--;
    }
    __atomic_store_n(&ring->head, side->done, __ATOMIC_RELEASE);
    LeaveCriticalSection(&side->lock);
}

static BYTE *take_free(Session *session, DWORD len)
{
    Ring *ring = &session->to_host;
    Side *side = &session->sending;
    ULONG head = __atomic_load_n(&ring->head, __ATOMIC_ACQUIRE), at = side->next;
    if (has_ended(ring))
        return SetLastError(ERROR_HANDLE_EOF), NULL;
    if (len > MAX_PACKET || used(len) > free_space(ring, head, at))
        return SetLastError(ERROR_BUFFER_OVERFLOW), NULL;
    *packet_len(ring, at) = len | RELEASED;
    side->next = wrap(at + used(len), ring);
    side->pending++;
    return (BYTE *)(packet_len(ring, at) + 1);
}

EXPORT BYTE *WINAPI WintunAllocateSendPacket(Session *session, DWORD len)
{
    BYTE *packet;
    EnterCriticalSection(&session->sending.lock);
    packet = take_free(session, len);
    LeaveCriticalSection(&session->sending.lock);
    return packet;
}

EXPORT void WINAPI WintunSendPacket(Session *session, const BYTE *packet)
{
    Ring *ring = &session->to_host;
    Side *side = &session->sending;
    EnterCriticalSection(&side->lock);
    ((ULONG *)packet)[-1] &= ~RELEASED;
    while (side->pending > 0 && (*packet_len(ring, side->done) & RELEASED) == 0) {
        side->done = wrap(side->done + used(*packet_len(ring, side->done)), ring);
        side->pending--;
    }
    if (!has_ended(ring))
        __atomic_store_n(&ring->tail, side->done, __ATOMIC_RELEASE);
    SetEvent(session->sent);
    LeaveCriticalSection(&side->lock);
}
