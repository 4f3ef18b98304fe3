// The smallest test support: CHECK fails the program with file, line and expression.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                      \
    }                                                                                    \
  } while (false)

// The expression must throw an exception of this type.
#define CHECK_THROWS(expression, type) \
  do {                                 \
    bool thrown = false;               \
    try {                              \
      (void)(expression);              \
    } catch (const type&) {            \
      thrown = true;                   \
    }                                  \
    CHECK(thrown);                     \
  } while (false)
