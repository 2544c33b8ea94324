// RUN: not pcp-opt %s --pcp-compress-collectives=wire=b16 2>&1 | filecheck %s

// CHECK: pcp-compress-collectives: wire=b16 is not one of bf16, f16
func.func @f() { return }
