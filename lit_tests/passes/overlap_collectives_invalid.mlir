// RUN: not pcp-opt %s --pcp-overlap-collectives=inflight=0 2>&1 | filecheck %s

// CHECK: pcp-overlap-collectives: inflight=0: at least one is under way
func.func @f() { return }
