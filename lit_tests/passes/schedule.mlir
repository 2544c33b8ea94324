// RUN: pcp-opt %s --pcp-schedule='kind=1f1b' | filecheck %s
// RUN: pcp-opt %s --pcp-schedule='kind=gpipe' | filecheck %s --check-prefix=GPIPE

// One stage: each backward right behind its forward, or all of them behind all.
// CHECK: dir = "fwd", microbatch = 0
// CHECK: dir = "bwd", microbatch = 0
// CHECK: dir = "fwd", microbatch = 1
// CHECK: dir = "bwd", microbatch = 1
// CHECK: kind = "1f1b"
// GPIPE: dir = "fwd", microbatch = 0
// GPIPE: dir = "fwd", microbatch = 1
// GPIPE: dir = "bwd", microbatch = 0
// GPIPE: dir = "bwd", microbatch = 1
// GPIPE: kind = "gpipe"
func.func @one(%o: !pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0> {
  %y = "pcp.schedule"(%o) ({
  ^bb0(%a: !pcp.on<tensor<4xf32>, @d0>):
    %b = "pcp.task"(%a) ({
    ^bb0(%x: tensor<4xf32>):
      %t = stablehlo.tanh %x : tensor<4xf32>
      "pcp.yield"(%t) : (tensor<4xf32>) -> ()
    }) {device = @d0, dir = "fwd", microbatch = 0, stage = 0} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
    %c = "pcp.task"(%a) ({
    ^bb0(%x: tensor<4xf32>):
      %t = stablehlo.tanh %x : tensor<4xf32>
      "pcp.yield"(%t) : (tensor<4xf32>) -> ()
    }) {device = @d0, dir = "fwd", microbatch = 1, stage = 0} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
    %d = "pcp.task"(%b) ({
    ^bb0(%x: tensor<4xf32>):
      %t = stablehlo.negate %x : tensor<4xf32>
      "pcp.yield"(%t) : (tensor<4xf32>) -> ()
    }) {device = @d0, dir = "bwd", microbatch = 0, stage = 0} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
    %e = "pcp.task"(%c, %d) ({
    ^bb0(%x: tensor<4xf32>, %z: tensor<4xf32>):
      %t = stablehlo.add %x, %z : tensor<4xf32>
      "pcp.yield"(%t) : (tensor<4xf32>) -> ()
    }) {device = @d0, dir = "bwd", microbatch = 1, stage = 0} : (!pcp.on<tensor<4xf32>, @d0>, !pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
    "pcp.yield"(%e) : (!pcp.on<tensor<4xf32>, @d0>) -> ()
  }) {kind = "custom", microbatches = 2} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
  return %y : !pcp.on<tensor<4xf32>, @d0>
}
