/* The version, as MAJOR.MINOR.PATCH of semantic versioning (semver.org). CMake reads it from here
 * and refuses to build beside a ptd_engine of another version. C and C++. */
#ifndef PTD_VERSION_H_
#define PTD_VERSION_H_

#define PTD_VERSION_MAJOR 0
#define PTD_VERSION_MINOR 1
#define PTD_VERSION_PATCH 0

/* 1002003 is 1.2.3: comparable by the preprocessor. */
#define PTD_VERSION_NUMBER \
  (PTD_VERSION_MAJOR * 1000000 + PTD_VERSION_MINOR * 1000 + PTD_VERSION_PATCH)

#endif /* PTD_VERSION_H_ */
