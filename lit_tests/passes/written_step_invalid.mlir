// RUN: pcp-opt %s --pcp-expand-training=func= --split-input-file --verify-diagnostics

func.func @grad(%w: tensor<f32>) -> tensor<f32> {
  return %w : tensor<f32>
}
func.func @apply(%w: tensor<f32>, %g: tensor<f32>) -> tensor<f32> {
  return %w : tensor<f32>
}
// expected-error@below {{pcp.step: @grad has 0 parameters, and the optimizer updates 1; say which arguments}}
"pcp.step"() {grad = @grad, optimizer = @apply, plan = {}, sym_name = "step"} : () -> ()

// -----

func.func @grad(%w: tensor<f32> {pcp.role = "param"}) -> tensor<2xf32> {
  %0 = stablehlo.broadcast_in_dim %w, dims = [] : (tensor<f32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
func.func @apply(%w: tensor<f32>, %g: tensor<f32>) -> tensor<f32> {
  return %w : tensor<f32>
}
// expected-error@below {{behind this gradient it is (tensor<f32>, tensor<2xf32>) -> tensor<f32>}}
"pcp.step"() {grad = @grad, optimizer = @apply, plan = {}, sym_name = "step"} : () -> ()

// -----

// expected-error@below {{pcp.step: no function @grad with a body}}
"pcp.step"() {grad = @grad, optimizer = @apply, plan = {}, sym_name = "step"} : () -> ()

// -----

func.func @grad(%w: tensor<f32> {pcp.role = "param"}) -> tensor<f32> {
  return %w : tensor<f32>
}
func.func @apply(%w: tensor<f32>, %g: tensor<f32>) -> tensor<f32> {
  return %w : tensor<f32>
}
// expected-error@below {{pcp.step: zero is a plan for whole programs: leave it to pcp-zero{stage=...}}}
"pcp.step"() {grad = @grad, optimizer = @apply, plan = {zero = 1}, sym_name = "step"} : () -> ()
