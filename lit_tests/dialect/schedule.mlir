// RUN: pcp-opt %s | filecheck %s
// RUN: PCP_ROUNDTRIP | filecheck %s
// RUN: pcp-opt %s --emit-bytecode | pcp-opt | filecheck %s
// RUN: pcp-opt %s --canonicalize --cse | filecheck %s

// CHECK-LABEL: func.func @stages
func.func @stages(%o: !pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d1> {
  // CHECK: "pcp.schedule"(%arg0) ({
  // CHECK-NEXT: ^bb0(%{{.*}}: !pcp.on<tensor<4xf32>, @d0>):
  %y = "pcp.schedule"(%o) ({
  ^bb0(%a: !pcp.on<tensor<4xf32>, @d0>):
    // CHECK-NEXT: "pcp.task"(%{{.*}}) ({
    // CHECK-NEXT: ^bb0(%{{.*}}: tensor<4xf32>):
    // CHECK-NEXT: stablehlo.tanh
    // CHECK-NEXT: pcp.yield
    // CHECK-NEXT: }) {device = @d0, dir = "fwd", microbatch = 0 : i64, stage = 0 : i64} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
    %k = "pcp.task"(%a) ({
    ^bb0(%x: tensor<4xf32>):
      %t = stablehlo.tanh %x : tensor<4xf32>
      "pcp.yield"(%t) : (tensor<4xf32>) -> ()
    }) {device = @d0, dir = "fwd", microbatch = 0, stage = 0} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
    // CHECK-NEXT: "pcp.transfer"(%{{.*}}) : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d1>
    %b = "pcp.transfer"(%k) : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d1>
    // CHECK-NEXT: pcp.yield
    "pcp.yield"(%b) : (!pcp.on<tensor<4xf32>, @d1>) -> ()
  // CHECK-NEXT: }) {kind = "1f1b", microbatches = 1 : i64}
  }) {kind = "1f1b", microbatches = 1} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d1>
  return %y : !pcp.on<tensor<4xf32>, @d1>
}
