// The benchmarks behind `deepinfer bench`; argv[0] is the benchmark's name.
#pragma once

namespace deepinfer {

int RunBenchLatency(int argc, char** argv);
int RunBenchStart(int argc, char** argv);
int RunBenchThroughput(int argc, char** argv);
int RunBenchServe(int argc, char** argv);
int RunBenchSpeculation(int argc, char** argv);
int RunBenchPrefixHit(int argc, char** argv);

}  // namespace deepinfer
