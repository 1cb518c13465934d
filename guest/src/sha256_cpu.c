/* Ten times as fast as portable C: without it, hashing is most of what moving a file costs. Asked for at run time, as
   the one binary runs on every processor of its kind. */
#include "sha256_cpu.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

/* The instructions keep the state as ABEF and CDGH. Four rounds each; `words[i % 4]` are the words 4i .. 4i+3. */
__attribute__((target("sha,sse4.1,ssse3"))) static void blocks_x86(uint32_t state[8], const uint8_t *blocks,
                                                                  size_t count)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bULL, 0x0405060700010203ULL);
    __m128i low = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xb1);
    __m128i high = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(low, high, 8), cdgh = _mm_blend_epi16(high, low, 0xf0);
    for (; count; count--, blocks += 64) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i words[4];
        for (int i = 0; i < 4; i++)
            words[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(blocks + 16 * i)), swap);
        for (int i = 0; i < 16; i++) {
            __m128i *now = &words[i % 4];
            if (i >= 4) {
                __m128i last = words[(i + 3) % 4], seven_back = _mm_alignr_epi8(last, words[(i + 2) % 4], 4);
                *now = _mm_add_epi32(_mm_sha256msg1_epu32(*now, words[(i + 1) % 4]), seven_back);
                *now = _mm_sha256msg2_epu32(*now, last);
            }
            __m128i sum = _mm_add_epi32(*now, _mm_loadu_si128((const __m128i *)(sha256_constants + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    __m128i first = _mm_shuffle_epi32(abef, 0x1b), second = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(first, second, 0xf0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(second, first, 8));
}

sha256_blocks *sha256_by_cpu(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSSE3) || !(c & bit_SSE4_1))
        return NULL;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & bit_SHA ? blocks_x86 : NULL;
}

#elif defined(__aarch64__)

#include <arm_neon.h>
#include <sys/auxv.h>

#define HAS_SHA2 (1ul << 6) /* HWCAP_SHA2 of the kernel's asm/hwcap.h */

__attribute__((target("sha2"))) static void blocks_arm(uint32_t state[8], const uint8_t *blocks, size_t count)
{
    uint32x4_t abcd = vld1q_u32(state), efgh = vld1q_u32(state + 4);
    for (; count; count--, blocks += 64) {
        const uint32x4_t abcd_before = abcd, efgh_before = efgh;
        uint32x4_t words[4];
        for (int i = 0; i < 4; i++)
            words[i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(blocks + 16 * i)));
        for (int i = 0; i < 16; i++) {
            uint32x4_t *now = &words[i % 4];
            if (i >= 4)
                *now = vsha256su1q_u32(vsha256su0q_u32(*now, words[(i + 1) % 4]), words[(i + 2) % 4],
                                       words[(i + 3) % 4]);
            uint32x4_t sum = vaddq_u32(*now, vld1q_u32(sha256_constants + 4 * i)), abcd_now = abcd;
            abcd = vsha256hq_u32(abcd, efgh, sum);
            efgh = vsha256h2q_u32(efgh, abcd_now, sum);
        }
        abcd = vaddq_u32(abcd, abcd_before);
        efgh = vaddq_u32(efgh, efgh_before);
    }
    vst1q_u32(state, abcd);
    vst1q_u32(state + 4, efgh);
}

sha256_blocks *sha256_by_cpu(void)
{
    return getauxval(AT_HWCAP) & HAS_SHA2 ? blocks_arm : NULL;
}

#else

sha256_blocks *sha256_by_cpu(void)
{
    return NULL;
}

#endif
