// RUN: pcp-opt %s --split-input-file --pcp-share-updates | filecheck %s
// RUN: pcp-opt %s --split-input-file --pass-pipeline='builtin.module(pcp-share-updates,pcp-propagate-sharding,pcp-insert-reshards,pcp-one-owner,pcp-partition,pcp-verify-owners)' | filecheck %s --check-prefix=PARTS

// Gradients and state are cut along the axis whose members round differently; the
// parameters are not, which the halves of the update are gathered to.
// CHECK-LABEL: func.func @apply
// CHECK-SAME: %arg0: tensor<8xf32> {pcp.role = "param", pcp.sharding = #pcp.sharding<@m, {{\[\[}}]], [], []>}
// CHECK-SAME: %arg1: tensor<8xf32> {pcp.role = "grad", pcp.sharding = #pcp.sharding<@m, {{\[\[}}"dp"]], [], []>}
// CHECK-SAME: %arg2: tensor<8xf32> {pcp.role = "state", pcp.sharding = #pcp.sharding<@m, {{\[\[}}"dp"]], [], []>}
// CHECK-LABEL: func.func @grad
// CHECK: "pcp.barrier_prop"
// CHECK-SAME: direction = "none"

// PARTS-LABEL: module @a
// PARTS: func.func @apply
// PARTS: stablehlo.subtract {{.*}} : tensor<4xf32>
// PARTS: "pcp.all_gather"{{.*}}(tensor<4xf32>) -> tensor<8xf32>
// PARTS-NOT: pcp.broadcast
// PARTS: func.func @grad
// PARTS: "pcp.reduce_scatter"
// PARTS-NOT: pcp.all_reduce
"pcp.target"() {arch = "cpu:host", caps = {}, driver = "local", sym_name = "x"} : () -> ()
"pcp.target"() {arch = "cpu", caps = {}, driver = "local", sym_name = "y"} : () -> ()
"pcp.device"() {sym_name = "a", target = @x} : () -> ()
"pcp.device"() {sym_name = "b", target = @y} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [@a, @b], sym_name = "m"} : () -> ()
func.func @apply(%w: tensor<8xf32> {pcp.role = "param"}, %g: tensor<8xf32> {pcp.role = "grad"}, %m: tensor<8xf32> {pcp.role = "state"}) -> (tensor<8xf32> {pcp.role = "param"}, tensor<8xf32> {pcp.role = "state"}) {
  %0 = stablehlo.add %m, %g : tensor<8xf32>
  %1 = stablehlo.subtract %w, %0 : tensor<8xf32>
  return %1, %0 : tensor<8xf32>, tensor<8xf32>
}
func.func @grad(%w: tensor<8xf32> {pcp.role = "param"}, %x: tensor<512x8xf32> {pcp.role = "data", pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}) -> (tensor<8xf32> {pcp.role = "grad"}) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<512x8xf32>, tensor<f32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

// A dimension that the one axis cuts is cut again by the other; what has too few
// elements is left to pcp-one-owner.
// CHECK-LABEL: func.func @apply
// CHECK-SAME: %arg1: tensor<8xf32> {pcp.role = "grad", pcp.sharding = #pcp.sharding<@m, {{\[\[}}"tp", "dp"]], [], []>}
// CHECK-SAME: %arg3: tensor<f32> {pcp.role = "grad", pcp.sharding = #pcp.sharding<@m, [], [], []>}
// PARTS-LABEL: module @a
// PARTS: "pcp.broadcast"{{.*}}axes = ["dp", "tp"]{{.*}}(tensor<f32>) -> tensor<f32>
"pcp.target"() {arch = "cpu:host", caps = {}, driver = "local", sym_name = "x"} : () -> ()
"pcp.target"() {arch = "cpu", caps = {}, driver = "local", sym_name = "y"} : () -> ()
"pcp.device"() {sym_name = "a", target = @x} : () -> ()
"pcp.device"() {sym_name = "b", target = @y} : () -> ()
"pcp.device"() {sym_name = "c", target = @y} : () -> ()
"pcp.device"() {sym_name = "d", target = @x} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>, #pcp.axis<"tp", 2>], devices = [@a, @b, @c, @d], sym_name = "m"} : () -> ()
func.func @apply(%w: tensor<8xf32> {pcp.role = "param", pcp.sharding = #pcp.sharding<@m, [["tp"]], [], []>}, %g: tensor<8xf32> {pcp.role = "grad", pcp.sharding = #pcp.sharding<@m, [["tp"]], [], []>}, %t: tensor<f32> {pcp.role = "param"}, %h: tensor<f32> {pcp.role = "grad"}) -> (tensor<8xf32> {pcp.role = "param", pcp.sharding = #pcp.sharding<@m, [["tp"]], [], []>}, tensor<f32> {pcp.role = "param"}) {
  %0 = stablehlo.subtract %w, %g : tensor<8xf32>
  %1 = stablehlo.subtract %t, %h : tensor<f32>
  return %0, %1 : tensor<8xf32>, tensor<f32>
}

// -----

// CHECK-LABEL: func.func @alike
// CHECK-NOT: pcp.sharding
"pcp.target"() {arch = "cpu", caps = {}, driver = "local", sym_name = "y"} : () -> ()
"pcp.device"() {sym_name = "a", target = @y} : () -> ()
"pcp.device"() {sym_name = "b", target = @y} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 2>], devices = [@a, @b], sym_name = "m"} : () -> ()
func.func @alike(%w: tensor<8xf32> {pcp.role = "param"}, %g: tensor<8xf32> {pcp.role = "grad"}) -> (tensor<8xf32> {pcp.role = "param"}) {
  %1 = stablehlo.subtract %w, %g : tensor<8xf32>
  return %1 : tensor<8xf32>
}
